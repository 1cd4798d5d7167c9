#include "graph/halves.hpp"

#include <vector>

namespace backpass {

NodeSet second_half(const Graph& graph) {
  NodeSet later;
  if (graph.gradient_count == 0) return later;
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
  for (const Node* node : graph.nodes()) {
    if (first.count(node) == 0) later.insert(node);
  }
  return later;
}

bool reads_extents_only(const Node& node) { return node.domain.empty() && (node.op == "Shape" || node.op == "Size"); }

}  // namespace backpass
