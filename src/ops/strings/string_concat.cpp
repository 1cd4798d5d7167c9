// StringConcat: corresponding strings, joined.
#include <string>

#include "graph/op.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, DType::string);
  c.require(c.dtype(1) == DType::string, "element type of Y: got ", name_of(c.dtype(1)), ", expected string");
  c.set_shape(0, rules::broadcast(c, c.shape(0), c.shape(1)));
}

void compute(ComputeContext& c) {
  const Tensor &x = c.tensor(0), &y = c.tensor(1);
  Tensor out(DType::string, broadcast_dims(x.dims(), y.dims()));
  const Dims x_strides = broadcast_strides(x.dims(), out.dims());
  const Dims y_strides = broadcast_strides(y.dims(), out.dims());
  for (std::int64_t i = 0; i < out.size(); ++i) {
    std::int64_t rest = i;
    std::int64_t at_x = 0;
    std::int64_t at_y = 0;
    for (std::size_t axis = out.dims().size(); axis-- > 0; rest /= out.dims()[axis]) {
      at_x += rest % out.dims()[axis] * x_strides[axis];
      at_y += rest % out.dims()[axis] * y_strides[axis];
    }
    out.as<std::string>()[i] = x.as<std::string>()[at_x] + y.as<std::string>()[at_y];
  }
  c.outputs[0] = std::move(out);
}

const Register string_concat{{.name = "StringConcat",
                              .since = 20,
                              .doc = "Corresponding strings, joined.",
                              .inputs = {2, 2},
                              .types = types::strings,
                              .infer = infer,
                              .compute = compute}};

}  // namespace
}  // namespace backpass
