#include "plan/schedule.hpp"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <unordered_set>

#include "graph/effects.hpp"
#include "graph/op.hpp"
#include "graph/overwriting.hpp"

namespace backpass {
namespace {

bool mentions(const Type& type, const std::string& symbol) {
  return type.shape &&
         std::any_of(type.shape->begin(), type.shape->end(), [&](const Dim& d) { return d.mentions(symbol); });
}

bool is_read_by(const Node& node, const std::string& symbol) {
  return std::any_of(node.inputs.begin(), node.inputs.end(),
                     [&](const Value* v) { return v != nullptr && mentions(v->type, symbol); });
}

class Scheduling {
 public:
  explicit Scheduling(const Graph& graph) : nodes_(graph.nodes()) {}

  std::vector<const Node*> run() {
    std::copy_if(nodes_.begin(), nodes_.end(), std::back_inserter(finding_),
                 [](const Node* n) { return finds_size(*n); });
    if (finding_.empty()) return {nodes_.begin(), nodes_.end()};
    for (const Node* node : nodes_) {
      if (!is_placed(node) && finds_size(*node)) place_all_that_need_no_size();
      place(node);
    }
    return std::move(order_);
  }

 private:
  bool is_placed(const Node* node) const { return placed_.count(node) != 0; }

  void place(const Node* node) {
    if (placed_.insert(node).second) order_.push_back(node);
  }

  /// What has to run before the node and did not yet; false when that cannot move, or finds a size itself.
  bool collect(const Node* node, std::vector<const Node*>& before) const {
    bool can_move = true;
    for_each_read(*node, [&](const Value* v) {
      const Node* producer = v->producer;
      if (!can_move || producer == nullptr || is_placed(producer)) return;
      if (std::find(before.begin(), before.end(), producer) != before.end()) return;
      const bool stays =
          producer->def == nullptr || producer->def->is_random || has_effect(*producer) || finds_size(*producer);
      can_move = !stays && before.size() < kMostMoved && collect(producer, before);
      if (can_move) before.push_back(producer);
    });
    return can_move;
  }

  void place_all_that_need_no_size() {
    for (const Node* found : finding_) {
      std::vector<const Node*> before;
      if (is_placed(found) || has_effect(*found) || !collect(found, before)) continue;
      for (const Node* node : before) place(node);
      place(found);
    }
    std::erase_if(finding_, [&](const Node* n) { return is_placed(n); });
  }

  static constexpr std::size_t kMostMoved = 64;  // sizes are found from masks and labels by a few nodes

  const std::vector<Node*>& nodes_;
  std::vector<const Node*> finding_;
  std::unordered_set<const Node*> placed_;
  std::vector<const Node*> order_;
};

/// Finds the places of nodes that write over inputs.
class Overwriting {
 public:
  explicit Overwriting(std::vector<const Node*> order) : order_(std::move(order)) {}

  std::vector<const Node*> run() {
    auto is_moved = [](const Node* n) { return !overwritten_by(*n).empty(); };
    if (std::none_of(order_.begin(), order_.end(), is_moved)) return std::move(order_);
    std::vector<const Node*> moved;
    std::copy_if(order_.begin(), order_.end(), std::back_inserter(moved), is_moved);
    std::erase_if(order_, is_moved);
    for (std::size_t i = 0; i < order_.size(); ++i) behind_.emplace(order_[i], i + 1);
    std::vector<std::vector<const Node*>> placed(order_.size() + 1);
    for (const Node* node : moved) placed[place_of(*node)].push_back(node);
    std::vector<const Node*> result = std::move(placed[0]);
    for (std::size_t i = 0; i < order_.size(); ++i) {
      result.push_back(order_[i]);
      result.insert(result.end(), placed[i + 1].begin(), placed[i + 1].end());
    }
    return result;
  }

 private:
  /// How many of the other nodes have to come before.
  std::size_t place_of(const Node& node) const {
    std::size_t place = 0;
    auto follow = [&](const Node* other) {
      const auto found = behind_.find(other);
      ensure(found != behind_.end(), shown(node), " and ", shown(*other), ", both of which write over inputs");
      place = std::max(place, found->second);
    };
    for_each_read(node, [&](const Value* v) {
      if (v->producer != nullptr) follow(v->producer);
    });
    for (const Value* input : overwritten_by(node)) {
      if (input == nullptr) continue;
      for (const Value* v : values_in_memory_of(input)) {
        for (const Node* reader : v->readers) {
          if (reader != &node) follow(reader);
        }
      }
    }
    return place;
  }

  std::vector<const Node*> order_;
  std::unordered_map<const Node*, std::size_t> behind_;
};

}  // namespace

bool finds_size(const Node& node) {
  for (const Value* v : node.outputs) {
    if (v == nullptr || !v->type.is_tensor() || !v->type.shape) continue;
    for (const Dim& d : *v->type.shape) {
      auto symbol = d.symbol_name();
      if (symbol && symbol->find('@') != std::string::npos && !is_read_by(node, *symbol)) return true;
    }
  }
  return false;
}

std::vector<const Node*> order_to_run(const Graph& graph) { return Overwriting(Scheduling(graph).run()).run(); }

}  // namespace backpass
