// ONNX Runtime's View(data, shapes...): the elements of data, one after the other, as tensors of these shapes.
#include "graph/builder.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.require(c.outputs.size() + 1 == c.input_count(), "got ", c.outputs.size(), " outputs for ", c.input_count() - 1,
            " shapes");
  for (std::size_t k = 0; k < c.outputs.size(); ++k) c.set_dtype(k, c.dtype(0));
  Dim total = 0;
  bool knows_all = true;
  for (std::size_t k = 0; k < c.outputs.size(); ++k) {
    const auto shape = c.maybe_ints(k + 1);
    knows_all = knows_all && shape.has_value();
    if (!shape) continue;
    c.set_shape(k, Shape(shape->begin(), shape->end()));
    total = total + product(*shape);
  }
  if (!knows_all || !c.knows_shape(0)) return;
  const Dim have = product(c.shape(0));
  c.require(!have.is_known() || !total.is_known() || have == total, "shapes: got ", total.str(),
            " elements together, expected ", have.str(), ", as many as the input has");
}

std::vector<Value*> expand(Builder& b, const Node& node) {
  Value* flat = b.op("Reshape", {node.input(0), b.ints({-1})});
  Value* at = b.ints({0});
  std::vector<Value*> views;
  for (std::size_t k = 1; k < node.inputs.size(); ++k) {
    Value* count = b.op("ReduceProd", {node.input(k)}, {{"keepdims", std::int64_t{1}}});
    Value* end = b.op("Add", {at, count});
    Value* piece = b.op("Slice", {flat, at, end, b.ints({0})});
    views.push_back(b.op("Reshape", {piece, node.input(k)}, {{"allowzero", std::int64_t{1}}}));
    at = end;
  }
  return views;
}

const Register kOp({.name = "View",
                    .domain = "com.microsoft",
                    .doc = "elements one after the other, as tensors of the shapes given",
                    .inputs = {2, -1},
                    .outputs = {1, -1},
                    .types = types::floats,
                    .infer = infer,
                    .expand = expand});

}  // namespace
}  // namespace backpass
