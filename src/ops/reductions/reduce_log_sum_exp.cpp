// ReduceLogSumExp: the largest value is taken out first, so that no exponential overflows.
#include <algorithm>
#include <cmath>
#include <cstddef>

#include "graph/op.hpp"
#include "kernels/reduce.hpp"
#include "ops/reductions/reduce_axes.hpp"
#include "ops/reductions/reduce_rules.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kGrain = 1 << 14;

template <class T>
void log_sum_exp(const Reduction& largest, const Reduction& sum, const T* x, T* shift, T* y, std::byte* scratch) {
  DType dtype = sizeof(T) == 4 ? DType::float32 : DType::float64;
  reduce(largest, dtype, x, nullptr, shift, scratch);
  reduce(sum, dtype, x, shift, y, scratch);
  // An infinite or NaN maximum is the answer already, whatever the sum made of it.
  for (std::int64_t i = 0; i < sum.outputs; ++i) y[i] = std::isfinite(shift[i]) ? y[i] + shift[i] : shift[i];
}

/// Integers (allowed before opset 28) are worked out in double and cut off.
Kernel prepare_integer(PrepareContext& c, const Reduction& largest, const Reduction& sum, std::size_t scratch) {
  DType dtype = c.in(0).dtype;
  std::int64_t n = c.in(0).size();
  std::size_t wide = c.reserve(static_cast<std::size_t>(n + 2 * sum.outputs) * sizeof(double));
  return [=](const KernelArgs& a) {
    auto* x = reinterpret_cast<double*>(a.scratch + wide);
    double* y = x + n;
    visit_integer(dtype, [&]<class T>() {
      parallel_for(n, kGrain,
                   [&](std::int64_t b, std::int64_t e) { std::copy(a.in<T>(0) + b, a.in<T>(0) + e, x + b); });
      log_sum_exp(largest, sum, x, y + sum.outputs, y, a.scratch + scratch);
      for (std::int64_t i = 0; i < sum.outputs; ++i) a.out<T>(0)[i] = static_cast<T>(y[i]);
    });
  };
}

Kernel prepare(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  std::vector<bool> axes = reduced_axes(c);
  Reduction largest = plan_reduction(c.in(0).dims, axes, Fold::maximum, Finish::none);
  Reduction sum = plan_reduction(c.in(0).dims, axes, Fold::sum_exp, Finish::log);
  std::size_t scratch = c.reserve(sum.scratch_bytes());
  if (is_integer(dtype)) return prepare_integer(c, largest, sum, scratch);
  std::size_t shift = c.reserve(byte_size(dtype, sum.outputs));
  return [=](const KernelArgs& a) {
    visit_real(dtype, [&]<class T>() {
      log_sum_exp(largest, sum, a.in<T>(0), reinterpret_cast<T*>(a.scratch + shift), a.out<T>(0), a.scratch + scratch);
    });
  };
}

const Register kOp({.name = "ReduceLogSumExp",
                    .since = 28,
                    .doc = "log of the sum of exponentials over axes",
                    .inputs = {1, 2},
                    .types = types::floats | DTypeSet{DType::int32, DType::int64, DType::uint32, DType::uint64},
                    .infer = infer_reduce,
                    .prepare = prepare,
                    .gradient = reduce_rule("ReduceLogSumExp"),
                    .half_through_float = true});

const RegisterAdapter kAxes({.op = "ReduceLogSumExp", .below = 18, .lift = axes_attribute_to_input});

}  // namespace
}  // namespace backpass
