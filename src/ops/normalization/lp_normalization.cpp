// LpNormalization: x divided by its 1- or 2-norm along an axis; zero stays zero.
#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  rules::same_as_input(c);
  std::int64_t p = c.node.attr_int("p", 2);
  c.require(p == 1 || p == 2, "p: got ", p, ", expected 1 or 2");
  if (c.knows_shape(0)) c.axis(c.node.attr_int("axis", -1), c.rank(0));
}

std::vector<Value*> expand(Builder& b, const Node& node) {
  Value* x = node.input(0);
  const char* norm_op = node.attr_int("p", 2) == 1 ? "ReduceL1" : "ReduceL2";
  Value* norm = b.op(norm_op, {x, b.ints({node.attr_int("axis", -1)})});
  Value* is_zero = b.op("Equal", {norm, b.scalar(0, x)});
  return {b.op("Div", {x, b.op("Where", {is_zero, b.scalar(1, x), norm})})};
}

const Register kOp({.name = "LpNormalization",
                    .since = 22,
                    .doc = "division by the 1- or 2-norm along an axis",
                    .types = types::floats,
                    .infer = infer,
                    .expand = expand});

}  // namespace
}  // namespace backpass
