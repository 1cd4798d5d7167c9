#include <algorithm>

#include "graph/op.hpp"
#include "plan/lower.hpp"

namespace backpass {
namespace {

/// float64 is for those who want its digits.
bool is_float_images(const Value* v) {
  if (v == nullptr || !v->type.shape || v->type.shape->size() != 4) return false;
  const DType dtype = v->type.dtype;
  return dtype == DType::float32 || dtype == DType::bfloat16 || dtype == DType::float16;
}

/// [outputs, inputs, 3, 3]
bool are_squares(const Value* w) {
  if (!is_float_images(w)) return false;
  const Shape& shape = *w->type.shape;
  return shape[2] == Dim(3) && shape[3] == Dim(3);
}

bool is_dense(const Node& node) {
  const auto are_one = [&](const char* name) {
    const std::vector<std::int64_t> steps = node.attr_ints(name);
    return std::all_of(steps.begin(), steps.end(), [](std::int64_t step) { return step == 1; });
  };
  return node.attr_int("group", 1) == 1 && are_one("strides") && are_one("dilations");
}

/// The weights of a node that has a kernel of this kind. Blocked convolutions keep constant weights transformed; plain
/// ones transform theirs in each run, so those that never change are better off as they are.
const Value* weights_of(const Node& node) {
  if (node.domain == "backpass" && node.op == "BlockedConv") return node.input(1);
  const bool is_forward = node.domain.empty() && node.op == "Conv";
  const bool is_gradient = node.domain == "com.microsoft" && node.op == "ConvGrad";
  if ((!is_forward && !is_gradient) || !is_float_images(node.input(0))) return nullptr;
  const Value* w = node.input(is_forward ? 1 : 2);
  return w != nullptr && w->constant ? nullptr : w;
}

}  // namespace

void winograd_convolutions(Graph& graph, Reports& reports) {
  for (Node* node : graph.nodes()) {
    if (!are_squares(weights_of(*node)) || !is_dense(*node)) continue;
    node->attributes["winograd"] = std::int64_t{1};
    reports.push_back({.node = node->label(),
                       .what = concat(node->label(), " may multiply transformed tiles"),
                       .why = "3 x 3 windows one apart then take as little as a quarter of the multiplications"});
  }
}

}  // namespace backpass
