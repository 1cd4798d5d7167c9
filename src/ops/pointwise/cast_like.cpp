// CastLike: Cast to the element type of another tensor.
#include "graph/builder.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(1));
  c.set_shape(0, c.shape(0));
  if (!is_integer(c.dtype(0)) || c.dtype(1) != DType::int64) return;
  if (auto values = c.maybe_ints(0)) c.set_ints(0, *values);
}

std::vector<Value*> expand(Builder& b, const Node& node) {
  // Attributes go along only where they are given: Cast has had each of them since another opset.
  AttributeList attributes(node.attributes.begin(), node.attributes.end());
  attributes.emplace_back("to", static_cast<std::int64_t>(node.inputs[1]->type.dtype));
  return {b.op("Cast", {node.inputs[0]}, attributes)};
}

const Register cast_like{{.name = "CastLike",
                          .since = 25,
                          .doc = "Converts elements to the type of the second input.",
                          .inputs = {2, 2},
                          .types = types::numbers | types::boolean | types::strings | types::float8s | types::sub_bytes,
                          .infer = infer,
                          .expand = expand}};

}  // namespace
}  // namespace backpass
