// continue_softmax of ops/attention/attention_kernel.hpp, one copy per instruction set.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "ops/attention/attention_kernel.hpp"
#include "support/simd.hpp"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/softmax_step.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/simd_math-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

float row_max(const float* x, std::size_t count) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  float best = -std::numeric_limits<float>::infinity();
  std::size_t i = 0;
  if (count >= lanes) {
    auto m = hn::LoadU(d, x);
    for (i = lanes; i + lanes <= count; i += lanes) m = hn::Max(m, hn::LoadU(d, x + i));
    best = hn::GetLane(hn::MaxOfLanes(d, m));
  }
  for (; i < count; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

// x = exp(x - shift)
float exp_and_sum(float* x, std::size_t count, float shift) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto s = hn::Set(d, shift);
  auto exp = [&](auto v) HWY_ATTR { return exp_of_negative(d, hn::Sub(v, s)); };
  auto sum = hn::Zero(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto e = exp(hn::LoadU(d, x + i));
    hn::StoreU(e, d, x + i);
    sum = hn::Add(sum, e);
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  if (i < count) {
    HWY_ALIGN float buffer[hn::MaxLanes(d)] = {};
    for (std::size_t k = 0; k < count - i; ++k) buffer[k] = x[i + k];
    hn::Store(exp(hn::Load(d, buffer)), d, buffer);
    for (std::size_t k = 0; k < count - i; ++k) total += x[i + k] = buffer[k];
  }
  return total;
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

HWY_EXPORT(row_max);
HWY_EXPORT(exp_and_sum);

float largest(const float* x, std::int64_t count) {
  return HWY_DYNAMIC_DISPATCH(row_max)(x, static_cast<std::size_t>(count));
}

double largest(const double* x, std::int64_t count) {
  double best = -std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < count; ++i) best = std::max(best, x[i]);
  return best;
}

float exponentials(float* x, std::int64_t count, float shift) {
  return HWY_DYNAMIC_DISPATCH(exp_and_sum)(x, static_cast<std::size_t>(count), shift);
}

double exponentials(double* x, std::int64_t count, double shift) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += x[i] = std::exp(x[i] - shift);
  return sum;
}

template <class T>
T step(T* x, std::int64_t count, T& running_max, T& rescale) {
  const T none = -std::numeric_limits<T>::infinity();
  const T m = std::max(running_max, largest(x, count));
  // With nothing to attend so far, subtracting -inf would give NaN where zeros belong.
  rescale = running_max == none || m == none ? T(1) : std::exp(running_max - m);
  running_max = m;
  return exponentials(x, count, m == none ? T(0) : m);
}

}  // namespace

float continue_softmax(float* x, std::int64_t count, float& running_max, float& rescale) {
  return step(x, count, running_max, rescale);
}

double continue_softmax(double* x, std::int64_t count, double& running_max, double& rescale) {
  return step(x, count, running_max, rescale);
}

}  // namespace backpass
#endif  // HWY_ONCE
