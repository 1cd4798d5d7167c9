#include <algorithm>

#include "graph/op.hpp"
#include "ops/pooling/pool.hpp"
#include "plan/lower.hpp"

namespace backpass {
namespace {

bool is_op(const Node& node, std::string_view op) { return node.domain.empty() && node.op == op; }

bool reads_as_indices(const Node* reader, const Value* indices) {
  return is_op(*reader, "MaxPoolGrad") && reader->input(1) == indices && reader->input(0) != indices;
}

/// Whether places in windows can stand in for the indices, which only gradients read.
bool can_be_narrowed(const Graph& graph, const Node& node) {
  if (!is_op(node, "MaxPool") || node.output(1) == nullptr || graph.is_output(node.output(1))) return false;
  const Value* x = node.input(0);
  if (!x->type.shape || x->type.shape->size() != 4 || !types::floats.has(x->type.dtype)) return false;
  const std::vector<std::int64_t> kernel = node.attr_ints("kernel_shape");
  if (node.attr_int("storage_order", 0) != 0 || kernel.size() != 2 || kernel[0] * kernel[1] > kMostPlaces) return false;
  const Value* indices = node.output(1);
  return !indices->readers.empty() && std::all_of(indices->readers.begin(), indices->readers.end(),
                                                  [&](const Node* n) { return reads_as_indices(n, indices); });
}

void turn_into(Graph& graph, Node& node, std::string_view op, const Node& pool) {
  auto attributes = pool.attributes;
  graph.rewrite(node, "backpass", op, {node.inputs.begin(), node.inputs.end()});
  node.attributes = std::move(attributes);
}

}  // namespace

void narrow_pooling(Graph& graph, Reports& reports) {
  const std::vector<Node*> nodes = graph.nodes();
  for (Node* node : nodes) {
    if (!can_be_narrowed(graph, *node)) continue;
    const std::string label = node->label();
    Value* indices = node->output(1);
    const std::vector<Node*> readers(indices->readers.begin(), indices->readers.end());
    for (Node* reader : readers) turn_into(graph, *reader, "MaxPoolPlacesGrad", *node);
    turn_into(graph, *node, "MaxPoolPlaces", *node);
    indices->type.dtype = DType::uint8;
    reports.push_back({.node = node->label(),
                       .what = concat(label, " keeps places in windows instead of indices"),
                       .why = "only its gradient reads them, and they take an eighth of the memory"});
  }
}

}  // namespace backpass
