#include "graph/graph.hpp"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "graph/effects.hpp"
#include "graph/op.hpp"

namespace backpass {

Graph::~Graph() = default;

std::string Graph::unique_name(std::string_view wanted) {
  std::string base(wanted.empty() ? "v" : wanted);
  auto [taken, is_new] = taken_names_.try_emplace(base, 0);
  if (is_new) return base;
  std::string unique;
  do {
    unique = base + "_" + std::to_string(++taken->second);
  } while (!taken_names_.try_emplace(unique, 0).second);
  return unique;
}

void Graph::rename(Value* value, std::string_view wanted) {
  taken_names_.erase(value->name);
  value->name = unique_name(wanted);
}

Value* Graph::add_value(std::string_view wanted, Type type) {
  auto value = std::make_unique<Value>();
  value->name = unique_name(wanted);
  value->type = std::move(type);
  values_.push_back(std::move(value));
  return values_.back().get();
}

Value* Graph::add_constant(std::string_view wanted, Tensor tensor) {
  Value* v = add_value(wanted, Type::tensor(tensor.dtype(), to_shape(tensor.dims())));
  v->constant = std::move(tensor);
  return v;
}

Node* Graph::add_node(std::string_view op, std::vector<Value*> reads, std::vector<Value*> writes,
                      std::string_view node_name, std::string_view domain, const Node* before) {
  auto owned = std::make_unique<Node>();
  Node* node = owned.get();
  node->name = node_name;
  node->op = op;
  node->domain = domain;
  node->def = find_op(domain, op);
  node->inputs.items_ = std::move(reads);
  for (Value* v : node->inputs) add_read(v, node);
  node->outputs = std::move(writes);
  for (Value* v : node->outputs) {
    if (v != nullptr) v->producer = node;
  }
  nodes_.push_back(std::move(owned));
  auto position = before == nullptr ? order_.end() : std::find(order_.begin(), order_.end(), before);
  order_.insert(position, node);
  return node;
}

void Graph::remove_node(Node* node) {
  for_each_read(*node, [&](Value* v) { drop_read(v, node); });
  std::unordered_set<const Value*> gone(node->outputs.begin(), node->outputs.end());
  gone.erase(nullptr);
  std::erase(order_, node);
  std::erase_if(nodes_, [&](const auto& n) { return n.get() == node; });
  std::erase_if(values_, [&](const auto& v) { return gone.count(v.get()) != 0; });
}

int Graph::remove_dead_nodes() {
  std::unordered_set<const Value*> live(outputs.begin(), outputs.end());
  std::unordered_set<const Node*> dead;
  for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
    Node* node = *it;
    bool used = has_effect(*node) ||
                std::any_of(node->outputs.begin(), node->outputs.end(), [&](Value* v) { return live.count(v) != 0; });
    if (used) {
      for_each_read(*node, [&](Value* v) { live.insert(v); });
      for (Value* v : node->outputs) live.insert(v);
    } else {
      dead.insert(node);
    }
  }
  for (Value* v : inputs) live.insert(v);
  for (const Capture& c : captures) live.insert(c.inner);
  std::unordered_set<Value*> less_read;
  for (const Node* node : dead) {
    for_each_read(*node, [&](Value* v) {
      if (live.count(v) != 0) less_read.insert(v);
    });
  }
  for (Value* v : less_read) std::erase_if(v->readers.items_, [&](const Node* n) { return dead.count(n) != 0; });
  std::erase_if(order_, [&](const Node* n) { return dead.count(n) != 0; });
  std::erase_if(nodes_, [&](const auto& n) { return dead.count(n.get()) != 0; });
  std::erase_if(values_, [&](const auto& v) { return live.count(v.get()) == 0; });
  return static_cast<int>(dead.size());
}

namespace {

/// Takes nodes whose producers are there, the first of them first.
class Sorting {
 public:
  explicit Sorting(const std::vector<Node*>& nodes) : nodes_(nodes) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      rank_[nodes[i]] = i;
      pending_[nodes[i]] = 0;
      for_each_read(*nodes[i], [&](const Value* v) {
        if (v->producer != nullptr) ++pending_[nodes[i]];
      });
    }
  }

  /// Every node with an effect waits for the one that stands before it.
  void keep_effects_in_order() {
    Node* last = nullptr;
    for (Node* node : nodes_) {
      if (!has_effect(*node)) continue;
      if (last != nullptr) {
        next_effect_[last] = node;
        ++pending_[node];
      }
      last = node;
    }
  }

  std::vector<Node*> run() {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (pending_[nodes_[i]] == 0) ready_.insert(i);
    }
    std::vector<Node*> sorted;
    while (!ready_.empty()) {
      Node* node = nodes_[*ready_.begin()];
      ready_.erase(ready_.begin());
      sorted.push_back(node);
      for (const Value* v : node->outputs) {
        if (v == nullptr || v->producer == nullptr) continue;
        for (Node* reader : v->readers) wait_less(reader);
      }
      if (auto next = next_effect_.find(node); next != next_effect_.end()) wait_less(next->second);
    }
    return sorted;
  }

  std::string waiting() {
    std::string names;
    for (Node* node : nodes_) {
      if (pending_[node] > 0 && names.size() < 200) names += (names.empty() ? "" : ", ") + node->label();
    }
    return names;
  }

 private:
  void wait_less(Node* node) {
    if (--pending_[node] == 0) ready_.insert(rank_[node]);
  }

  const std::vector<Node*>& nodes_;
  std::unordered_map<const Node*, int> pending_;
  std::unordered_map<const Node*, std::size_t> rank_;
  std::unordered_map<const Node*, Node*> next_effect_;
  std::set<std::size_t> ready_;
};

}  // namespace

void Graph::sort_topologically() {
  Sorting sorting(order_);
  sorting.keep_effects_in_order();
  std::vector<Node*> sorted = sorting.run();
  if (sorted.size() != order_.size()) {  // a file that is not sorted says nothing of the order of effects
    Sorting by_reads(order_);
    sorted = by_reads.run();
    if (sorted.size() != order_.size()) {
      fail("graph '", name, "' has a cycle through ", by_reads.waiting(), "; an ONNX graph must be acyclic");
    }
  }
  order_ = std::move(sorted);
}

bool Graph::is_output(const Value* v) const { return std::find(outputs.begin(), outputs.end(), v) != outputs.end(); }

}  // namespace backpass
