// Softmax, LogSoftmax: exp(x) / sum(exp(x)) along one axis, and its logarithm.
#include "kernels/softmax.hpp"

#include "ops/axis_view.hpp"
#include "ops/flatten_semantics.hpp"
#include "ops/op.hpp"
#include "ops/shape_rules.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  rules::same_as_input(c);
  if (c.knows_shape(0)) c.axis(c.node.attr_int("axis", -1), c.rank(0));
}

template <bool log>
Kernel prepare(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  AxisView v = axis_view(c, c.node.attr_int("axis", -1));
  return [=](const KernelArgs& a) {
    visit_real(dtype, [&]<class T>() { softmax(a.in<T>(0), a.out<T>(0), v.outer, v.extent, v.inner, log); });
  };
}

template <bool log>
OpDef definition(std::string_view name, std::string_view doc) {
  return {.name = name,
          .since = 13,
          .doc = doc,
          .types = types::floats,
          .infer = infer,
          .prepare = prepare<log>,
          .half_through_float = true,
          .in_place_input = 0};
}

const Register kSoftmax(definition<false>("Softmax", "exponentials along an axis, scaled to sum 1"));
const Register kLogSoftmax(definition<true>("LogSoftmax", "logarithm of softmax along an axis"));
const RegisterAdapter kSoftmaxFlat({.op = "Softmax", .below = 13, .lift = lift_flattening_axis});
const RegisterAdapter kLogSoftmaxFlat({.op = "LogSoftmax", .below = 13, .lift = lift_flattening_axis});

}  // namespace
}  // namespace backpass
