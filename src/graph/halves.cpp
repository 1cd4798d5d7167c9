#include "graph/halves.hpp"

#include <vector>

namespace backpass {

NodeSet first_half(const Graph& graph) {
  if (graph.gradient_count == 0) return {graph.nodes().begin(), graph.nodes().end()};
  NodeSet first;
  std::vector<const Node*> stack;
  auto visit = [&](const Value* v) {
    if (v->producer != nullptr && first.insert(v->producer).second) stack.push_back(v->producer);
  };
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    const bool is_gradient = i >= graph.first_gradient && i - graph.first_gradient < graph.gradient_count;
    if (!is_gradient) visit(graph.outputs[i]);
  }
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    for_each_read(*node, visit);
  }
  return first;
}

NodeSet second_half(const Graph& graph) {
  NodeSet later;
  if (graph.gradient_count == 0) return later;
  const NodeSet first = first_half(graph);
  for (const Node* node : graph.nodes()) {
    if (first.count(node) == 0) later.insert(node);
  }
  return later;
}

std::string name_of_copy(const Node& node) {
  return node.name.empty() && node.output(0) != nullptr ? node.output(0)->name : node.name;
}

bool reads_extents_only(const Node& node) { return node.domain.empty() && (node.op == "Shape" || node.op == "Size"); }

}  // namespace backpass
