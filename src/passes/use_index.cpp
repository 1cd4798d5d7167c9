#include "passes/use_index.hpp"

#include <algorithm>

#include "graph/op.hpp"

namespace backpass {

UseIndex::UseIndex(const Graph& graph) : graph_(graph) {
  for (Node* node : graph.nodes()) {
    for_each_read(*node, [&](Value* v) { add_read(v, node); });
  }
}

const std::vector<Node*>& UseIndex::readers(const Value* v) const {
  static const std::vector<Node*> kNone;
  auto it = readers_.find(v);
  return it == readers_.end() ? kNone : it->second;
}

std::size_t UseIndex::count(const Value* v) const { return readers(v).size() + (graph_.is_output(v) ? 1 : 0); }

Node* UseIndex::only_reader(const Value* v) const {
  const std::vector<Node*>& all = readers(v);
  return all.size() == 1 && !graph_.is_output(v) ? all.front() : nullptr;
}

void UseIndex::rewrite(Node* node, std::string_view domain, std::string_view op, std::vector<Value*> inputs) {
  std::vector<Value*> old = std::move(node->inputs);
  node->inputs = std::move(inputs);
  node->domain = domain;
  node->op = op;
  node->def = find_op(domain, op);
  ensure(node->def != nullptr, "rewrite: operator ", domain, ".", op, " is not registered");
  for (Value* v : node->inputs) {
    if (v != nullptr) add_read(v, node);
  }
  for (Value* v : old) {
    if (v != nullptr) drop_read(v, node);
  }
}

void UseIndex::add_read(Value* v, Node* node) { readers_[v].push_back(node); }

void UseIndex::drop_read(Value* v, Node* node) {
  std::vector<Node*>& all = readers_[v];
  auto it = std::find(all.begin(), all.end(), node);
  if (it != all.end()) all.erase(it);
  Node* producer = v->producer;
  if (producer == nullptr) return;
  bool dead = std::all_of(producer->outputs.begin(), producer->outputs.end(),
                          [&](const Value* o) { return o == nullptr || count(o) == 0; });
  if (!dead) return;
  for_each_read(*producer, [&](Value* read) { drop_read(read, producer); });
}

}  // namespace backpass
