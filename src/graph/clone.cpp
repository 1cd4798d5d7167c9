#include "graph/clone.hpp"

#include <memory>
#include <utility>

namespace backpass {
namespace {

Value* copy_of(Graph& to, const Value* v, ValueMap& copies) {
  if (v == nullptr) return nullptr;
  auto [at, is_new] = copies.try_emplace(v, nullptr);
  if (is_new) {
    at->second = to.add_value(v->name, v->type);
    at->second->constant = v->constant;
    at->second->ints = v->ints;
  }
  return at->second;
}

std::unique_ptr<Graph> clone_body(Graph& parent, const Graph& body, ValueMap& outer) {
  std::unique_ptr<Graph> result = clone(body).graph;
  result->redirect_captures([&](Value* v) { return copy_of(parent, v, outer); });
  return result;
}

void copy_nodes(Graph& to, std::span<const Node* const> nodes, ValueMap& copies) {
  auto all = [&](const std::vector<Value*>& values) {
    std::vector<Value*> result;
    result.reserve(values.size());
    for (const Value* v : values) result.push_back(copy_of(to, v, copies));
    return result;
  };
  for (const Node* node : nodes) {
    Node* copy = to.add_node(node->op, all(node->inputs), all(node->outputs), node->name, node->domain);
    copy->def = node->def;
    copy->opset = node->opset;
    copy->attributes = node->attributes;
    for (const auto& [key, body] : node->subgraphs) to.add_subgraph(*copy, key, clone_body(to, *body, copies));
  }
}

}  // namespace

void clone_into(Graph& to, const Graph& from, ValueMap& copies) {
  const std::vector<const Node*> nodes(from.nodes().begin(), from.nodes().end());
  copy_nodes(to, nodes, copies);
}

Clone clone(const Graph& graph) {
  return clone(graph, std::vector<const Node*>(graph.nodes().begin(), graph.nodes().end()));
}

Clone clone(const Graph& graph, std::span<const Node* const> order) {
  Clone result{std::make_unique<Graph>(), {}};
  Graph& copy = *result.graph;
  auto of = [&](const Value* v) { return copy_of(copy, v, result.copies); };
  copy.name = graph.name;
  copy.parent = graph.parent;
  copy.equalities = graph.equalities;
  for (const Capture& c : graph.captures) copy.add_capture(c.outer, of(c.inner));
  for (const Value* v : graph.inputs) copy.inputs.push_back(of(v));
  copy_nodes(copy, order, result.copies);
  for (const Value* v : graph.outputs) copy.outputs.push_back(of(v));
  copy.first_gradient = graph.first_gradient;
  copy.gradient_count = graph.gradient_count;
  for (const Value* v : graph.steady_inputs) copy.steady_inputs.push_back(of(v));
  return result;
}

}  // namespace backpass
