// SkipLayerNormalization(x, skip, scale, bias, x_bias) -> y, mean, inverse deviation, sum: LayerNormalization of the
// sum of x, skip and x_bias.
#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.set_dtype(1, DType::float32);
  c.set_dtype(2, DType::float32);
  c.set_dtype(3, c.dtype(0));
  Shape shape = c.shape(0);
  c.require(!shape.empty(), "input: got a scalar, expected rows");
  c.set_shape(0, shape);
  c.set_shape(3, shape);
  shape.back() = 1;
  c.set_shape(1, shape);
  c.set_shape(2, shape);
}

std::vector<Value*> expand(Builder& b, const Node& node) {
  Value* sum = b.op("Add", {node.input(0), node.input(1)});
  if (node.input(4) != nullptr) sum = b.op("Add", {sum, node.input(4)});
  std::vector<Value*> out = b.ops(
      "LayerNormalization", {sum, node.input(2), node.input(3)}, 3,
      {{"axis", std::int64_t{-1}}, {"epsilon", node.attr_float("epsilon", 1e-12F)}, {"stash_type", std::int64_t{1}}});
  out.push_back(sum);
  return out;
}

const Register kOp({.name = "SkipLayerNormalization",
                    .domain = "com.microsoft",
                    .doc = "LayerNormalization of a sum",
                    .inputs = {3, 5},
                    .outputs = {1, 4},
                    .types = types::floats,
                    .infer = infer,
                    .expand = expand});

}  // namespace
}  // namespace backpass
