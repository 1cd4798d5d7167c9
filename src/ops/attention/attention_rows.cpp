#include "ops/attention/attention_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/attention_rows.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
constexpr T kNone = -std::numeric_limits<T>::infinity();

template <class T>
void add_mask_as(T* HWY_RESTRICT scores, const T* HWY_RESTRICT added, std::size_t n) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto none = hn::Set(d, kNone<T>);
  std::size_t j = 0;
  for (; j + lanes <= n; j += lanes) {
    const auto m = hn::LoadU(d, added + j);
    hn::StoreU(hn::IfThenElse(hn::Eq(m, none), none, hn::Add(hn::LoadU(d, scores + j), m)), d, scores + j);
  }
  for (; j < n; ++j) scores[j] = added[j] == kNone<T> ? kNone<T> : scores[j] + added[j];
}

/// scores[j] = other(scores[j]) where chosen[j] is false.
template <class Other>
void unless_chosen(float* HWY_RESTRICT scores, const bool* HWY_RESTRICT chosen, std::size_t n, const Other& other) {
  const hn::ScalableTag<float> d;
  const hn::ScalableTag<std::uint32_t> wide;
  const hn::Rebind<std::uint8_t, decltype(wide)> bytes;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t j = 0;
  for (; j + lanes <= n; j += lanes) {
    const auto b = hn::PromoteTo(wide, hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(chosen) + j));
    const auto out = hn::RebindMask(d, hn::Eq(b, hn::Zero(wide)));
    const auto x = hn::LoadU(d, scores + j);
    hn::StoreU(hn::IfThenElse(out, other(d, x), x), d, scores + j);
  }
  const hn::CappedTag<float, 1> one;
  for (; j < n; ++j)
    if (!chosen[j]) hn::StoreU(other(one, hn::LoadU(one, scores + j)), one, scores + j);
}

void choose_f32(float* scores, const bool* chosen, std::size_t n) {
  unless_chosen(scores, chosen, n, [](auto d, auto) HWY_ATTR { return hn::Set(d, kNone<float>); });
}

void lower_f32(float* scores, const bool* chosen, float lowest, std::size_t n) {
  unless_chosen(scores, chosen, n, [=](auto d, auto x) HWY_ATTR { return hn::Add(x, hn::Set(d, lowest)); });
}

bool any_byte(const std::uint8_t* HWY_RESTRICT bytes, std::size_t n) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t j = 0;
  for (; j + 4 * lanes <= n; j += 4 * lanes) {
    const auto a = hn::Or(hn::LoadU(d, bytes + j), hn::LoadU(d, bytes + j + lanes));
    const auto b = hn::Or(hn::LoadU(d, bytes + j + 2 * lanes), hn::LoadU(d, bytes + j + 3 * lanes));
    if (!hn::AllTrue(d, hn::Eq(hn::Or(a, b), hn::Zero(d)))) return true;
  }
  for (; j + lanes <= n; j += lanes)
    if (!hn::AllTrue(d, hn::Eq(hn::LoadU(d, bytes + j), hn::Zero(d)))) return true;
  return std::any_of(bytes + j, bytes + n, [](std::uint8_t b) { return b != 0; });
}

template <class T>
bool any_above_as(const T* HWY_RESTRICT numbers, std::size_t n, T limit) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto l = hn::Set(d, limit);
  std::size_t j = 0;
  for (; j + 2 * lanes <= n; j += 2 * lanes) {
    const auto a = hn::Le(hn::LoadU(d, numbers + j), l);
    const auto b = hn::Le(hn::LoadU(d, numbers + j + lanes), l);
    if (!hn::AllTrue(d, hn::And(a, b))) return true;
  }
  for (; j < n; ++j)
    if (!(numbers[j] <= limit)) return true;
  return false;
}

// Zero times a number is zero; times an infinity or NaN it is NaN, and so is the sum.
template <class T>
T zero_times(const T* HWY_RESTRICT numbers, std::int64_t n) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);
  std::int64_t j = 0;
  for (; j + lanes <= n; j += lanes) sum = hn::MulAdd(hn::Zero(d), hn::LoadU(d, numbers + j), sum);
  T all = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; j < n; ++j) all += 0 * numbers[j];
  return all;
}

template <class T>
bool all_finite_as(const T* first, std::int64_t rows, std::int64_t length, std::int64_t stride) {
  if (stride == length) return zero_times(first, rows * length) == 0;
  T sum = 0;
  for (std::int64_t i = 0; i < rows; ++i) sum += zero_times(first + i * stride, length);
  return sum == 0;
}

template <class T>
void score_gradient_as(const T* HWY_RESTRICT weights, T factor, T* HWY_RESTRICT slope, std::size_t n) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d);
  auto b = hn::Zero(d);
  std::size_t j = 0;
  for (; j + 2 * lanes <= n; j += 2 * lanes) {
    a = hn::MulAdd(hn::LoadU(d, weights + j), hn::LoadU(d, slope + j), a);
    b = hn::MulAdd(hn::LoadU(d, weights + j + lanes), hn::LoadU(d, slope + j + lanes), b);
  }
  for (; j + lanes <= n; j += lanes) a = hn::MulAdd(hn::LoadU(d, weights + j), hn::LoadU(d, slope + j), a);
  T mean = hn::GetLane(hn::SumOfLanes(d, hn::Add(a, b)));
  for (; j < n; ++j) mean += weights[j] * slope[j];
  mean *= factor;
  const auto m = hn::Set(d, mean);
  const auto f = hn::Set(d, factor);
  for (j = 0; j + lanes <= n; j += lanes) {
    const auto p = hn::Mul(hn::LoadU(d, weights + j), f);
    hn::StoreU(hn::Mul(p, hn::Sub(hn::LoadU(d, slope + j), m)), d, slope + j);
  }
  for (; j < n; ++j) slope[j] = weights[j] * factor * (slope[j] - mean);
}

template <class T>
void copy_rows_as(const T* HWY_RESTRICT from, std::size_t from_stride, std::size_t rows, std::size_t length,
                  T* HWY_RESTRICT to, std::size_t to_stride, std::size_t filled) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t whole = length / lanes * lanes;
  for (std::size_t i = 0; i < rows; ++i, from += from_stride, to += to_stride) {
    for (std::size_t j = 0; j < whole; j += lanes) hn::StoreU(hn::LoadU(d, from + j), d, to + j);
    for (std::size_t j = whole; j < filled; ++j) to[j] = j < length ? from[j] : T(0);
  }
}

void add_mask_f32(float* s, const float* m, std::size_t n) { add_mask_as(s, m, n); }
void add_mask_f64(double* s, const double* m, std::size_t n) { add_mask_as(s, m, n); }
bool any_above_f32(const float* x, std::size_t n, float l) { return any_above_as(x, n, l); }
bool any_above_f64(const double* x, std::size_t n, double l) { return any_above_as(x, n, l); }
bool all_finite_f32(const float* x, std::int64_t r, std::int64_t n, std::int64_t s) {
  return all_finite_as(x, r, n, s);
}
bool all_finite_f64(const double* x, std::int64_t r, std::int64_t n, std::int64_t s) {
  return all_finite_as(x, r, n, s);
}
void score_gradient_f32(const float* w, float f, float* s, std::size_t n) { score_gradient_as(w, f, s, n); }
void score_gradient_f64(const double* w, double f, double* s, std::size_t n) { score_gradient_as(w, f, s, n); }
void copy_rows_f32(const float* from, std::size_t step, std::size_t rows, std::size_t n, float* to, std::size_t to_step,
                   std::size_t filled) {
  copy_rows_as(from, step, rows, n, to, to_step, filled);
}
void copy_rows_f64(const double* from, std::size_t step, std::size_t rows, std::size_t n, double* to,
                   std::size_t to_step, std::size_t filled) {
  copy_rows_as(from, step, rows, n, to, to_step, filled);
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {

HWY_EXPORT(add_mask_f32);
HWY_EXPORT(add_mask_f64);
HWY_EXPORT(choose_f32);
HWY_EXPORT(lower_f32);
HWY_EXPORT(any_byte);
HWY_EXPORT(any_above_f32);
HWY_EXPORT(any_above_f64);
HWY_EXPORT(all_finite_f32);
HWY_EXPORT(all_finite_f64);
HWY_EXPORT(score_gradient_f32);
HWY_EXPORT(score_gradient_f64);
HWY_EXPORT(copy_rows_f32);
HWY_EXPORT(copy_rows_f64);

void add_mask(float* scores, const float* added, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(add_mask_f32)(scores, added, static_cast<std::size_t>(count));
}
void add_mask(double* scores, const double* added, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(add_mask_f64)(scores, added, static_cast<std::size_t>(count));
}
void choose_scores(float* scores, const bool* chosen, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(choose_f32)(scores, chosen, static_cast<std::size_t>(count));
}
void choose_scores(double* scores, const bool* chosen, std::int64_t count) {
  for (std::int64_t j = 0; j < count; ++j)
    if (!chosen[j]) scores[j] = -std::numeric_limits<double>::infinity();
}
void lower_scores(float* scores, const bool* chosen, float lowest, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(lower_f32)(scores, chosen, lowest, static_cast<std::size_t>(count));
}
void lower_scores(double* scores, const bool* chosen, double lowest, std::int64_t count) {
  for (std::int64_t j = 0; j < count; ++j)
    if (!chosen[j]) scores[j] += lowest;
}
bool any_chosen(const bool* chosen, std::int64_t count) {
  return HWY_DYNAMIC_DISPATCH(any_byte)(reinterpret_cast<const std::uint8_t*>(chosen), static_cast<std::size_t>(count));
}
bool any_above(const float* numbers, std::int64_t count, float limit) {
  return HWY_DYNAMIC_DISPATCH(any_above_f32)(numbers, static_cast<std::size_t>(count), limit);
}
bool any_above(const double* numbers, std::int64_t count, double limit) {
  return HWY_DYNAMIC_DISPATCH(any_above_f64)(numbers, static_cast<std::size_t>(count), limit);
}
bool all_finite(const float* first, std::int64_t rows, std::int64_t length, std::int64_t stride) {
  return HWY_DYNAMIC_DISPATCH(all_finite_f32)(first, rows, length, stride);
}
bool all_finite(const double* first, std::int64_t rows, std::int64_t length, std::int64_t stride) {
  return HWY_DYNAMIC_DISPATCH(all_finite_f64)(first, rows, length, stride);
}
void score_gradient(const float* weights, float factor, float* slope, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(score_gradient_f32)(weights, factor, slope, static_cast<std::size_t>(count));
}
void score_gradient(const double* weights, double factor, double* slope, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(score_gradient_f64)(weights, factor, slope, static_cast<std::size_t>(count));
}
void copy_rows(const float* from, std::int64_t from_stride, std::int64_t rows, std::int64_t length, float* to,
               std::int64_t to_stride, std::int64_t filled) {
  HWY_DYNAMIC_DISPATCH(copy_rows_f32)
  (from, static_cast<std::size_t>(from_stride), static_cast<std::size_t>(rows), static_cast<std::size_t>(length), to,
   static_cast<std::size_t>(to_stride), static_cast<std::size_t>(filled));
}
void copy_rows(const double* from, std::int64_t from_stride, std::int64_t rows, std::int64_t length, double* to,
               std::int64_t to_stride, std::int64_t filled) {
  HWY_DYNAMIC_DISPATCH(copy_rows_f64)
  (from, static_cast<std::size_t>(from_stride), static_cast<std::size_t>(rows), static_cast<std::size_t>(length), to,
   static_cast<std::size_t>(to_stride), static_cast<std::size_t>(filled));
}

}  // namespace backpass
#endif  // HWY_ONCE
