// Before opset 13, Softmax, LogSoftmax and Hardmax saw their input as a matrix whose columns start at `axis`.
#pragma once

#include "graph/builder.hpp"

namespace backpass {

/// Rewrites the node to the per-axis form: flatten, take the last axis, restore the shape.
inline void lift_flattening_axis(Builder& b, Node& node) {
  std::int64_t axis = node.attr_int("axis", 1);
  node.attributes["axis"] = std::int64_t{-1};
  Value* x = node.input(0);
  if (axis == -1 || x == nullptr || node.outputs.empty() || node.outputs[0] == nullptr) return;
  if (x->type.shape && axis == static_cast<std::int64_t>(x->type.shape->size()) - 1) return;
  Value* flat = b.op("Flatten", {x}, {{"axis", axis}});
  Value* result = b.op(node.op, {flat}, {{"axis", std::int64_t{-1}}});
  node.op = "Reshape";
  node.attributes.clear();
  node.attributes["allowzero"] = std::int64_t{1};
  b.graph.set_inputs(node, {result, b.op("Shape", {x})});
}

}  // namespace backpass
