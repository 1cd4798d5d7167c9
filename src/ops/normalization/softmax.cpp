// Softmax, LogSoftmax: exp(x) / sum(exp(x)) along one axis, and its logarithm.
#include "kernels/softmax.hpp"

#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "ops/axis_view.hpp"
#include "ops/normalization/flatten_semantics.hpp"
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

/// y (dy - sum(y dy)); of the logarithm: dy - e^y sum(dy). Of a row that is minus infinity all over, y is no number;
/// where a model puts something else in its place, nothing flows back to it, and nothing may go on.
template <bool log>
void gradient(GradientContext& g) {
  const std::int64_t axis = g.node.attr_int("axis", -1);
  Value* is_replaced = g.op("And", {g.op("IsNaN", {g.y()}), g.equal(g.dy(), g.zero())});
  Value* p = g.where(is_replaced, g.zero(), log ? g.exp(g.y()) : g.y());
  Value* total = g.sum(log ? g.dy() : g.mul(p, g.dy()), {axis}, true);
  g.set(0, log ? g.sub(g.dy(), g.mul(p, total)) : g.mul(p, g.sub(g.dy(), total)));
}

template <bool log>
void fused_gradient(GradientContext& g) {
  g.set(0, g.op(log ? "LogSoftmaxGrad_13" : "SoftmaxGrad_13", {g.dy(), g.y()}, {{"axis", g.node.attr_int("axis", -1)}},
                "com.microsoft"));
}

template <bool log>
OpDef definition(std::string_view name, std::string_view doc) {
  return {.name = name,
          .since = 13,
          .doc = doc,
          .types = types::floats,
          .infer = infer,
          .prepare = prepare<log>,
          .gradient = gradient<log>,
          .fused_gradient = fused_gradient<log>,
          .half_through_float = true,
          .in_place_input = 0,
          .is_one_pass = true};
}

const Register kSoftmax(definition<false>("Softmax", "exponentials along an axis, scaled to sum 1"));
const Register kLogSoftmax(definition<true>("LogSoftmax", "logarithm of softmax along an axis"));
const RegisterAdapter kSoftmaxFlat({.op = "Softmax", .below = 13, .lift = lift_flattening_axis});
const RegisterAdapter kLogSoftmaxFlat({.op = "LogSoftmax", .below = 13, .lift = lift_flattening_axis});

}  // namespace
}  // namespace backpass
