// Hardmax: 1 at the first largest element along an axis, 0 elsewhere.
#include <algorithm>

#include "graph/op.hpp"
#include "kernels/arg_extreme.hpp"
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

Kernel prepare(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  AxisView v = axis_view(c, c.node.attr_int("axis", -1));
  std::size_t winners = c.reserve(byte_size(DType::int64, v.outer * v.inner));
  return [=](const KernelArgs& a) {
    if (v.extent == 0) return;
    auto* at = reinterpret_cast<std::int64_t*>(a.scratch + winners);
    visit_real(dtype, [&]<class T>() {
      arg_extreme(a.in<T>(0), at, v.outer, v.extent, v.inner, true, false);
      T* y = a.out<T>(0);
      std::fill_n(y, v.outer * v.extent * v.inner, T{0});
      for (std::int64_t i = 0; i < v.outer * v.inner; ++i) {
        y[((i / v.inner) * v.extent + at[i]) * v.inner + i % v.inner] = T{1};
      }
    });
  };
}

const Register kOp({.name = "Hardmax",
                    .since = 13,
                    .doc = "1 at the first largest element along an axis, 0 elsewhere",
                    .types = types::floats,
                    .infer = infer,
                    .prepare = prepare,
                    .is_flat = true,
                    .half_through_float = true});
const RegisterAdapter kFlat({.op = "Hardmax", .below = 13, .lift = lift_flattening_axis});

}  // namespace
}  // namespace backpass
