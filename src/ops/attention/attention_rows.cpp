#include "ops/attention/attention_rows.hpp"

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

void choose_f32(float* HWY_RESTRICT scores, const bool* HWY_RESTRICT chosen, std::size_t n) {
  const hn::ScalableTag<float> d;
  const hn::ScalableTag<std::uint32_t> wide;
  const hn::Rebind<std::uint8_t, decltype(wide)> bytes;
  const std::size_t lanes = hn::Lanes(d);
  const auto none = hn::Set(d, kNone<float>);
  std::size_t j = 0;
  for (; j + lanes <= n; j += lanes) {
    const auto b = hn::PromoteTo(wide, hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(chosen) + j));
    const auto out = hn::RebindMask(d, hn::Eq(b, hn::Zero(wide)));
    hn::StoreU(hn::IfThenElse(out, none, hn::LoadU(d, scores + j)), d, scores + j);
  }
  for (; j < n; ++j)
    if (!chosen[j]) scores[j] = kNone<float>;
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
