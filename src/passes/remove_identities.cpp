#include <algorithm>

#include "graph/op.hpp"
#include "passes/list.hpp"

namespace backpass {
namespace {

bool same_shape(const Value* a, const Value* b) {
  return a->type.is_tensor() && b->type.is_tensor() && a->type.shape && b->type.shape &&
         *a->type.shape == *b->type.shape;
}

bool is_identity(const Node& node) {
  if (!node.domain.empty() || node.outputs.empty() || node.input(0) == nullptr || node.output(0) == nullptr)
    return false;
  const Value* in = node.input(0);
  const Value* out = node.output(0);
  if (node.op == "Identity") return true;
  if (node.op == "Cast") return in->type.is_tensor() && in->type.dtype == out->type.dtype;
  if (node.op == "Transpose") {
    std::vector<std::int64_t> perm = node.attr_ints("perm");
    return !perm.empty() && std::is_sorted(perm.begin(), perm.end());
  }
  if (node.op == "Expand" || node.op == "Reshape" || node.op == "Flatten") return same_shape(in, out);
  return false;
}

}  // namespace

void remove_identities(Graph& graph, Reports& reports) {
  bool removed = false;
  for (Node* node : graph.nodes()) {
    if (!is_identity(*node)) continue;
    Value* in = node->inputs[0];
    Value* out = node->outputs[0];
    // A graph output keeps its own value when the input is something the caller owns or another output.
    if (graph.is_output(out)) continue;
    graph.replace_uses(out, in);
    reports.push_back({.node = node->label(),
                       .what = "bypassed " + node->label(),
                       .why = "it returns its input unchanged",
                       .bytes_saved = node->def != nullptr && node->def->is_view ? "0" : bytes_of(out)});
    removed = true;
  }
  if (removed) graph.remove_dead_nodes();
}

}  // namespace backpass
