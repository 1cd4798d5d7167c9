#include "plan/repeat.hpp"

#include <algorithm>
#include <unordered_map>

#include "graph/clone.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

enum BatchNormInput : std::size_t { kScale = 1, kBias, kMean, kVariance };

/// Normalises by the statistics of the batch; the running ones are only passed on, changed.
bool is_batch_norm(const Node& node) {
  if (node.op == "BatchNormInternal") return true;
  return node.op == "BatchNormalization" && node.domain.empty() && node.attr_int("training_mode", 0) != 0;
}

bool have_one_type(const Node& node) {
  for (std::size_t i : {kBias, kMean, kVariance}) {
    if (node.input(i) == nullptr || node.inputs[i]->type.dtype != node.inputs[kScale]->type.dtype) return false;
  }
  return true;
}

class Repeating {
 public:
  Repeating(const Graph& graph, const NodeSet& forward, const Repeats& repeats)
      : graph_(graph), forward_(forward), repeats_(repeats), result_(clone(graph)), copies_(result_.graph->nodes()) {
    for (std::size_t i = 0; i < graph.nodes().size(); ++i) order_.emplace(graph.nodes()[i], i);
  }

  std::unique_ptr<Graph> run() {
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      const Node& node = *graph_.nodes()[i];
      if (forward_.count(&node) == 0) redirect(node, *copies_[i]);
    }
    return std::move(result_.graph);
  }

 private:
  bool is_gone(const Value* v) const {
    return v != nullptr && v->producer != nullptr && forward_.count(v->producer) != 0 && !repeats_.is_kept(v);
  }

  void redirect(const Node& node, Node& copy) {
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (!is_gone(node.inputs[i])) continue;
      repeat(node.inputs[i]->producer, copy, {repeats_.epoch(&node), static_cast<int>(order_.at(&node))});
      result_.graph->set_input(copy, i, repeated_.at(node.inputs[i]));
    }
  }

  /// Puts copies of the node, and of those whose results it reads that are gone, before `reader`.
  void repeat(const Node* first, const Node& reader, const Moment& now) {
    std::vector<const Node*> todo{first};
    std::vector<const Node*> chosen;
    while (!todo.empty()) {
      const Node* node = todo.back();
      todo.pop_back();
      Moment& made = made_[node];
      if (made.serves(now, repeats_.fate(node))) continue;
      made = now;
      chosen.push_back(node);
      for (const Value* v : node->inputs) {
        if (is_gone(v)) todo.push_back(v->producer);
      }
    }
    std::sort(chosen.begin(), chosen.end(), [&](const Node* a, const Node* b) { return order_.at(a) < order_.at(b); });
    for (const Node* node : chosen) add_copy(*node, reader);
  }

  void add_copy(const Node& node, const Node& before) {
    ensure(is_repeatable(node), shown(node), " is to run a second time");
    std::vector<Value*> reads;
    for (std::size_t i = 0; i < node.inputs.size(); ++i) reads.push_back(read_by_copy(node, i));
    std::vector<Value*> writes;
    for (const Value* v : node.outputs) {
      writes.push_back(v == nullptr ? nullptr : result_.graph->add_value(v->name + "_again", v->type));
      if (v == nullptr) continue;
      writes.back()->ints = v->ints;
      repeated_[v] = writes.back();
    }
    Node* copy =
        result_.graph->add_node(node.op, std::move(reads), std::move(writes), name_of_copy(node), node.domain, &before);
    copy->def = node.def;
    copy->opset = node.opset;
    copy->attributes = node.attributes;
  }

  Value* read_by_copy(const Node& node, std::size_t i) const {
    const Value* v = node.inputs[input_of_copy(node, i)];
    if (v == nullptr) return nullptr;
    return is_gone(v) ? repeated_.at(v) : result_.of(v);
  }

  const Graph& graph_;
  const NodeSet& forward_;
  const Repeats& repeats_;
  Clone result_;
  std::vector<Node*> copies_;  // of the nodes of the graph, in their order
  std::unordered_map<const Node*, std::size_t> order_;
  std::unordered_map<const Node*, Moment> made_;       // when the newest copy was made
  std::unordered_map<const Value*, Value*> repeated_;  // by the newest copy
};

}  // namespace

bool is_repeatable(const Node& node) {
  if (node.def == nullptr || node.def->prepare == nullptr || !node.subgraphs.empty()) return false;
  if (is_batch_norm(node) && !have_one_type(node)) return false;
  return !node.def->is_random || node.def->is_one_pass || node.has_attribute("stream");
}

std::size_t input_of_copy(const Node& node, std::size_t i) {
  return is_batch_norm(node) && i >= kMean ? i - (kMean - kScale) : i;
}

NodeSet nodes_to_repeat(const Graph& graph, const NodeSet& forward) {
  NodeSet found;
  std::vector<const Value*> todo;
  for (const Node* node : graph.nodes()) {
    if (forward.count(node) == 0) todo.insert(todo.end(), node->inputs.begin(), node->inputs.end());
  }
  while (!todo.empty()) {
    const Value* v = todo.back();
    todo.pop_back();
    if (v == nullptr || v->producer == nullptr || forward.count(v->producer) == 0) continue;
    if (!is_repeatable(*v->producer) || !found.insert(v->producer).second) continue;
    for (std::size_t i = 0; i < v->producer->inputs.size(); ++i) {
      todo.push_back(v->producer->inputs[input_of_copy(*v->producer, i)]);
    }
  }
  return found;
}

std::unique_ptr<Graph> with_repeats(const Graph& graph, const NodeSet& forward, const Repeats& repeats) {
  return Repeating(graph, forward, repeats).run();
}

}  // namespace backpass
