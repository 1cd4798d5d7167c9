// Gradients of Softmax and LogSoftmax from their outputs, under the names ONNX Runtime gives them. SoftmaxGrad and
// LogSoftmaxGrad see a matrix whose columns start at `axis`; the forms ending in _13 work along one axis.
#include "graph/op.hpp"
#include "ops/axis_view.hpp"
#include "ops/normalization/softmax_grad_kernel.hpp"
#include "ops/shape_rules.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

template <bool flat>
std::int64_t axis_of(const Node& node) {
  return node.attr_int("axis", flat ? 1 : -1);
}

template <bool flat>
void infer(InferContext& c) {
  rules::same_as_input(c);
  c.require(c.dtype(1) == c.dtype(0), "output of the forward pass: got ", name_of(c.dtype(1)), ", expected ",
            name_of(c.dtype(0)));
  if (c.knows_shape(0)) c.axis(axis_of<flat>(c.node), c.rank(0));
}

template <bool log, bool flat>
Kernel prepare(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  c.require(c.in(0).dims == c.in(1).dims, "got shapes ", shown(c.in(0).dims), " and ", shown(c.in(1).dims),
            ", expected the same");
  AxisView v = axis_view(c, axis_of<flat>(c.node));
  if (flat) v = {v.outer, v.extent * v.inner, 1};
  return [=](const KernelArgs& a) {
    visit_real(dtype,
               [&]<class T>() { softmax_grad(a.in<T>(0), a.in<T>(1), a.out<T>(0), v.outer, v.extent, v.inner, log); });
  };
}

template <bool log, bool flat>
OpDef definition(std::string_view name, std::string_view doc) {
  return {.name = name,
          .domain = "com.microsoft",
          .doc = doc,
          .inputs = {2, 2},
          .types = types::floats,
          .infer = infer<flat>,
          .prepare = prepare<log, flat>,
          .half_through_float = true,
          .in_place_input = 0};
}

const Register kSoftmax(definition<false, true>("SoftmaxGrad", "gradient of Softmax before opset 13"));
const Register kLogSoftmax(definition<true, true>("LogSoftmaxGrad", "gradient of LogSoftmax before opset 13"));
const Register kSoftmax13(definition<false, false>("SoftmaxGrad_13", "gradient of Softmax"));
const Register kLogSoftmax13(definition<true, false>("LogSoftmaxGrad_13", "gradient of LogSoftmax"));

}  // namespace
}  // namespace backpass
