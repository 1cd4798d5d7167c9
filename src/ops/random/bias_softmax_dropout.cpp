// ONNX Runtime's BiasSoftmaxDropout(data, bias, ratio) -> dropout of the softmax, mask, softmax; and its gradient,
// SoftmaxDropoutGrad(dy, mask, softmax, ratio).
#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "ops/random/dropout.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.set_dtype(1, DType::boolean);
  c.set_dtype(2, c.dtype(0));
  for (std::size_t k = 0; k < 3; ++k) c.set_shape(k, c.shape(0));
  c.axis(c.node.attr_int("axis", 1), c.rank(0));
}

Value* yes(Builder& b) {
  Tensor t(DType::boolean, {});
  *t.as<bool>() = true;
  return b.constant(t);
}

std::vector<Value*> expand(Builder& b, const Node& node) {
  AttributeList seed;
  if (node.has_attribute("seed")) seed.emplace_back("seed", node.attr_int("seed"));
  Value* softmax =
      b.op("BiasSoftmax", {node.input(0), node.input(1)}, {{"axis", node.attr_int("axis", 1)}}, "com.microsoft");
  std::vector<Value*> results = b.ops("Dropout", {softmax, node.input(2), yes(b)}, 2, seed);
  results.push_back(softmax);
  return results;
}

void infer_grad(InferContext& c) {
  rules::same_as_input(c);
  c.require(c.dtype(1) == DType::boolean, "mask: got ", name_of(c.dtype(1)), ", expected bool");
  c.axis(c.node.attr_int("axis", 1), c.rank(0));
}

std::vector<Value*> expand_grad(Builder& b, const Node& node) {
  Value* dropped = b.op("DropoutGrad", {node.input(0), node.input(1), node.input(3)}, {}, "com.microsoft");
  const AttributeList axis{{"axis", node.attr_int("axis", 1)}};
  return {b.op("SoftmaxGrad", {dropped, node.input(2)}, axis, "com.microsoft")};
}

const Register kOp({.name = "BiasSoftmaxDropout",
                    .domain = "com.microsoft",
                    .doc = "dropout of the softmax of data + bias",
                    .inputs = {2, 3},
                    .outputs = {1, 3},
                    .types = types::floats,
                    .infer = infer,
                    .expand = expand,
                    .is_random = true});

const Register kGrad({.name = "SoftmaxDropoutGrad",
                      .domain = "com.microsoft",
                      .doc = "gradient of BiasSoftmaxDropout",
                      .inputs = {3, 4},
                      .types = types::floats,
                      .infer = infer_grad,
                      .expand = expand_grad});

}  // namespace
}  // namespace backpass
