#include "passes/fold_constants.hpp"

#include <algorithm>

#include "graph/evaluate.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{64} << 20;
constexpr std::int64_t kMaxGrowth = std::int64_t{1} << 20;

bool is_foldable(const Node& node) {
  if (node.def == nullptr || node.def->is_random || !node.subgraphs.empty() || node.inputs.empty()) return false;
  if (node.def->prepare == nullptr && node.def->compute == nullptr) return false;
  std::int64_t in_bytes = 0;
  for (const Value* v : node.inputs) {
    if (v == nullptr) continue;
    if (!v->constant) return false;
    in_bytes += static_cast<std::int64_t>(v->constant->bytes());
  }
  std::int64_t out_bytes = 0;
  for (const Value* v : node.outputs) {
    if (v == nullptr) continue;
    if (!v->type.is_tensor()) return false;
    if (v->type.shape && is_known(*v->type.shape)) {
      out_bytes += static_cast<std::int64_t>(byte_size(v->type.dtype, element_count(to_dims(*v->type.shape))));
    }
  }
  return out_bytes <= kMaxBytes && out_bytes <= in_bytes + kMaxGrowth;
}

}  // namespace

int fold_constants(Graph& graph, std::vector<std::string>& log) {
  int folded = 0;
  for (Node* node : graph.nodes()) {
    if (!is_foldable(*node)) continue;
    std::vector<RuntimeValue> inputs;
    for (const Value* v : node->inputs) inputs.push_back(v == nullptr ? RuntimeValue() : RuntimeValue(*v->constant));
    std::vector<RuntimeValue> results = evaluate_node(*node, std::move(inputs));
    for (std::size_t k = 0; k < node->outputs.size(); ++k) {
      Value* out = node->outputs[k];
      if (out == nullptr) continue;
      out->constant = results[k].tensor;
      out->type = Type::tensor(out->constant->dtype(), to_shape(out->constant->dims()));
      out->producer = nullptr;
    }
    log.push_back("folded " + node->label() + " into a constant");
    node->outputs.clear();
    ++folded;
  }
  if (folded > 0) graph.remove_dead_nodes();
  return folded;
}

}  // namespace backpass
