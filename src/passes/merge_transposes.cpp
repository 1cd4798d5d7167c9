#include "passes/list.hpp"

namespace backpass {
namespace {

bool is_transpose(const Node* node) {
  return node != nullptr && node->op == "Transpose" && node->domain.empty() && node->has_attribute("perm");
}

}  // namespace

void merge_transposes(Graph& graph, Reports& reports) {
  bool merged = false;
  for (Node* node : graph.nodes()) {
    Value* between = is_transpose(node) ? node->input(0) : nullptr;
    const Node* first = between == nullptr ? nullptr : between->producer;
    if (!is_transpose(first)) continue;
    const std::vector<std::int64_t> inner = first->attr_ints("perm");
    std::vector<std::int64_t> perm = node->attr_ints("perm");
    if (perm.size() != inner.size()) continue;
    for (std::int64_t& axis : perm) axis = inner.at(static_cast<std::size_t>(axis));
    reports.push_back({.node = node->label(),
                       .what = "merged " + node->label() + " with " + first->label(),
                       .why = "two permutations of axes are one",
                       .bytes_saved = bytes_of(between)});
    node->attributes["perm"] = std::move(perm);
    graph.set_input(*node, 0, first->input(0));
    merged = true;
  }
  if (merged) graph.remove_dead_nodes();
}

}  // namespace backpass
