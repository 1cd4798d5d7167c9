#include <algorithm>

#include "passes/list.hpp"

namespace backpass {
namespace {

bool is_reshape(const Node* node) { return node != nullptr && node->op == "Reshape" && node->domain.empty(); }

/// 0 and -1 would mean something else for another input.
bool has_fixed_target(const Node& node) {
  const Value* target = node.input(1);
  if (target == nullptr || !target->constant || target->constant->dtype() != DType::int64) return false;
  const std::vector<std::int64_t> extents = target->constant->to_ints();
  return std::all_of(extents.begin(), extents.end(), [](std::int64_t extent) { return extent > 0; });
}

}  // namespace

void merge_reshapes(Graph& graph, Reports& reports) {
  bool merged = false;
  for (Node* node : graph.nodes()) {
    const Node* first = is_reshape(node) && has_fixed_target(*node) ? node->input(0)->producer : nullptr;
    if (!is_reshape(first)) continue;
    reports.push_back({.node = node->label(),
                       .what = "merged " + node->label() + " with " + first->label(),
                       .why = "the second alone decides the shape",
                       .bytes_saved = "0"});
    graph.set_input(*node, 0, first->input(0));
    merged = true;
  }
  if (merged) graph.remove_dead_nodes();
}

}  // namespace backpass
