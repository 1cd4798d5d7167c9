// BiasSoftmax: softmax of data + bias over all axes from `axis` on.
#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  rules::same_as_input(c);
  if (c.knows_shape(0)) c.axis(c.node.attr_int("axis", 1), c.rank(0));
}

/// A bias of lower rank, or with other inner extents, is repeated as is_inner_broadcast says; shapes that numpy would
/// broadcast already mean the same.
std::vector<Value*> expand(Builder& b, const Node& node) {
  Value* x = node.input(0);
  Value* sum = b.op("Add", {x, node.input(1)});
  Value* flat = b.op("Flatten", {sum}, {{"axis", node.attr_int("axis", 1)}});
  Value* y = b.op("Softmax", {flat}, {{"axis", std::int64_t{-1}}});
  return {b.op("Reshape", {y, b.op("Shape", {x})}, {{"allowzero", std::int64_t{1}}})};
}

const Register kOp({.name = "BiasSoftmax",
                    .domain = "com.microsoft",
                    .doc = "softmax of data + bias",
                    .inputs = {2, 2},
                    .types = types::floats,
                    .infer = infer,
                    .expand = expand});

}  // namespace
}  // namespace backpass
