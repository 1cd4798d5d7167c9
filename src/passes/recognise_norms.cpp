#include <algorithm>

#include "graph/builder.hpp"
#include "passes/list.hpp"
#include "passes/match_norm.hpp"
#include "passes/pattern.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

Shape row_of(const WrittenNorm& found) {
  const Shape& x = *found.x->type.shape;
  return {x.begin() + found.axis, x.end()};
}

/// The operators want one.
Value* ones(Graph& graph, const WrittenNorm& found) {
  Builder b(graph, found.result, found.result->name);
  const DType dtype = found.x->type.dtype;
  Tensor numbers(dtype, to_dims(row_of(found)));
  visit_float(dtype, [&]<class T>() { std::fill_n(numbers.as<T>(), numbers.size(), static_cast<T>(1)); });
  return b.constant(std::move(numbers));
}

void rewrite(Graph& graph, const WrittenNorm& found) {
  Value* scale = found.scale != nullptr ? found.scale : ones(graph, found);
  std::vector<Value*> inputs{found.x, scale};
  if (found.bias != nullptr) inputs.push_back(found.bias);
  Node& node = *found.result;
  node.attributes.clear();
  graph.rewrite(node, "", found.is_centered ? "LayerNormalization" : "RMSNormalization", inputs);
  node.attributes["axis"] = found.axis;
  node.attributes["epsilon"] = static_cast<float>(found.epsilon);
  if (found.x->type.dtype == DType::float64) node.attributes["stash_type"] = static_cast<std::int64_t>(DType::float64);
}

}  // namespace

void recognise_norms(Graph& graph, Reports& reports) {
  bool changed = false;
  const std::vector<Node*> nodes = graph.nodes();
  for (Node* node : nodes) {
    const std::optional<WrittenNorm> found = match_norm(graph, *node);
    if (!found || (found->scale == nullptr && !is_known(row_of(*found)))) continue;
    reports.push_back({.node = found->result->label(),
                       .what = concat("recognised ", found->is_centered ? "LayerNormalization" : "RMSNormalization",
                                      " in ", node->label(), " and ", found->nodes.size() - 1, " nodes around it"),
                       .why = "one operator computes it, and another its gradient from x and two numbers per row",
                       .bytes_saved = bytes_of(pattern::inner_values(graph, found->nodes))});
    rewrite(graph, *found);
    changed = true;
  }
  if (changed) graph.remove_dead_nodes();
}

}  // namespace backpass
