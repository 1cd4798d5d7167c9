#include <algorithm>

#include "graph/infer.hpp"
#include "passes/list.hpp"

namespace backpass {
namespace {

/// All of one type, so that what is stored of the statistics is what was computed with.
bool can_be_split(const Node& node) {
  if (node.op != "BatchNormInternal" || node.domain != "com.microsoft") return false;
  if (node.output(0) == nullptr || node.output(3) == nullptr || node.output(4) == nullptr) return false;
  const Type& x = node.input(0)->type;
  if (!x.shape || x.shape->size() < 2 || (x.dtype != DType::float32 && x.dtype != DType::float64)) return false;
  return std::all_of(node.inputs.begin(), node.inputs.end(),
                     [&](const Value* v) { return v != nullptr && v->type.dtype == x.dtype && v->type.shape; });
}

void split(Graph& graph, Node& node, const Node* next) {
  Value* y = node.outputs[0];
  Value* factor = graph.add_value(y->name + "_factor");
  Value* offset = graph.add_value(y->name + "_offset");
  Node* factors = graph.add_node("BatchNormFactors", {node.input(1), node.input(2), node.output(3), node.output(4)},
                                 {factor, offset}, node.name, "backpass", next);
  factors->attributes["rank"] = static_cast<std::int64_t>(node.input(0)->type.shape->size());
  infer_node(graph, *factors);
  node.outputs[0] = nullptr;
  graph.add_node("MulAdd", {node.input(0), factor, offset}, {y}, node.name, "backpass", next);
}

}  // namespace

void split_batch_norm(Graph& graph, Reports& reports) {
  const std::vector<Node*> nodes = graph.nodes();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!can_be_split(*nodes[i])) continue;
    split(graph, *nodes[i], i + 1 < nodes.size() ? nodes[i + 1] : nullptr);
    reports.push_back({.node = nodes[i]->label(),
                       .what = "split " + nodes[i]->label() + " into statistics and a pointwise part",
                       .why = "that part is fused with its neighbours",
                       .bytes_saved = "0"});
  }
}

}  // namespace backpass
