#include "gradient/body.hpp"

#include <algorithm>

#include "gradient/activity.hpp"
#include "graph/effects.hpp"
#include "graph/infer.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

const Node* find_random(const Graph& graph) {
  for (const Node* node : graph.nodes()) {
    if (node->def != nullptr && node->def->is_random) return node;
    for (const auto& [key, sub] : node->subgraphs) {
      if (const Node* found = find_random(*sub)) return found;
    }
  }
  return nullptr;
}

}  // namespace

Value* captured_in(Graph& body, Value* outer) {
  for (const Capture& c : body.captures) {
    if (c.outer == outer) return c.inner;
  }
  Value* inner = body.add_value(outer->name, outer->type);
  inner->constant = outer->constant;
  inner->ints = outer->ints;
  body.add_capture(outer, inner);
  return inner;
}

std::vector<Capture> wanted_captures(const GradientContext& g, const Graph& body) {
  std::vector<Capture> wanted;
  std::copy_if(body.captures.begin(), body.captures.end(), std::back_inserter(wanted),
               [&](const Capture& c) { return g.wants(c.outer); });
  return wanted;
}

void finish_body(const GradientContext& g, Graph& body) {
  body.remove_dead_nodes();
  ValueSet used(body.outputs.begin(), body.outputs.end());
  for (const Node* node : body.nodes()) {
    for_each_read(*node, [&](const Value* v) { used.insert(v); });
  }
  body.remove_captures([&](const Capture& c) { return used.count(c.inner) == 0; });
  body.remove_dead_nodes();
  if (const Node* effect = find_effect(body)) {
    fail<Unsupported>(g.node.label(), " gradient: its body talks to other processes in ", effect->label(),
                      ", which cannot be done again while going back; move it out of the body");
  }
  if (const Node* random = find_random(body)) {
    fail<Unsupported>(g.node.label(), " gradient: its body draws random numbers in ", random->label(),
                      ", which cannot be drawn again while going back; move it out of the body");
  }
}

std::vector<Value*> add_with_bodies(GradientContext& g, std::string_view op, std::vector<Value*> inputs,
                                    Bodies&& bodies, std::size_t output_count, const AttributeList& attributes) {
  Graph& graph = g.b.graph;
  const std::string name = concat(g.node.name.empty() ? g.node.op : g.node.name, "_Grad/", op);
  std::vector<Value*> outputs;
  for (std::size_t i = 0; i < output_count; ++i) outputs.push_back(graph.add_value(name));
  Node* node = graph.add_node(op, std::move(inputs), outputs, name);
  for (const auto& [key, attribute] : attributes) node->attributes.emplace(key, attribute);
  for (auto& [key, body] : bodies) graph.add_subgraph(*node, key, std::move(body));
  infer_node(graph, *node);
  return outputs;
}

}  // namespace backpass
