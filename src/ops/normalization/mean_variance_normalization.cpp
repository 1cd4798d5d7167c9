// MeanVarianceNormalization: (x - mean) / (deviation + 1e-9) over some axes.
#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  rules::same_as_input(c);
  if (!c.knows_shape(0)) return;
  for (std::int64_t axis : c.node.attr_ints("axes", {0, 2, 3})) c.axis(axis, c.rank(0));
}

std::vector<Value*> expand(Builder& b, const Node& node) {
  constexpr double kEpsilon = 1e-9;
  constexpr double kLeast = 1e-36;  // of the variance: the root has no slope at 0, and beside epsilon it does not show
  const DType dtype = node.input(0)->type.dtype;
  const bool half = dtype == DType::float16 || dtype == DType::bfloat16;  // too coarse for squares, and for epsilon
  auto cast = [&](Value* v, DType to) { return b.op("Cast", {v}, {{"to", static_cast<std::int64_t>(to)}}); };
  Value* x = half ? cast(node.input(0), DType::float32) : node.input(0);
  Value* axes = b.ints(node.attr_ints("axes", {0, 2, 3}));
  Value* centered = b.op("Sub", {x, b.op("ReduceMean", {x, axes})});
  Value* variance = b.op("ReduceMean", {b.op("Mul", {centered, centered}), axes});
  variance = b.op("Max", {variance, b.scalar(kLeast, x)});
  Value* deviation = b.op("Add", {b.op("Sqrt", {variance}), b.scalar(kEpsilon, x)});
  Value* y = b.op("Div", {centered, deviation});
  return {half ? cast(y, dtype) : y};
}

const Register kOp({.name = "MeanVarianceNormalization",
                    .since = 13,
                    .doc = "mean 0 and variance 1 over axes",
                    .types = types::floats,
                    .infer = infer,
                    .expand = expand});

}  // namespace
}  // namespace backpass
