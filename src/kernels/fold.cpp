#include "kernels/fold.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/fold.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/fold_simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {

constexpr std::size_t kRunBlock = 1024;  // elements added up in the element type before going to double

template <Fold F, class T>
double fold_run_as(const T* HWY_RESTRICT x, std::size_t n, T shift_value) {
  const hn::ScalableTag<T> d;
  using A = Accumulator<F, decltype(d)>;
  const std::size_t lanes = hn::Lanes(d);
  const auto shift = hn::Set(d, shift_value);
  double total = fold_identity(F);
  std::size_t i = 0;
  while (i < n) {
    const std::size_t end = std::min(n, i + kRunBlock);
    A a0(d), a1(d), a2(d), a3(d);
    for (; i + 4 * lanes <= end; i += 4 * lanes) {
      a0.add(d, contribution<F>(d, hn::LoadU(d, x + i), shift));
      a1.add(d, contribution<F>(d, hn::LoadU(d, x + i + lanes), shift));
      a2.add(d, contribution<F>(d, hn::LoadU(d, x + i + 2 * lanes), shift));
      a3.add(d, contribution<F>(d, hn::LoadU(d, x + i + 3 * lanes), shift));
    }
    for (; i + lanes <= end; i += lanes) a0.add(d, contribution<F>(d, hn::LoadU(d, x + i), shift));
    if (i < end) a1.add(d, contribution<F>(d, load_some(d, x + i, end - i, filler<F>(shift_value)), shift));
    i = end;
    a0.join(d, a1);
    a2.join(d, a3);
    a0.join(d, a2);
    total = fold_join(F, total, a0.total(d));
  }
  return total;
}

/// A run too short for vectors.
template <Fold F, class T>
HWY_INLINE double fold_short_run(const T* HWY_RESTRICT x, std::size_t n, T shift) {
  double total = fold_identity(F);
  for (std::size_t i = 0; i < n; ++i) {
    auto v = static_cast<double>(x[i]);
    if constexpr (F == Fold::sum_abs) v = std::abs(v);
    if constexpr (F == Fold::sum_square) v = (v - static_cast<double>(shift)) * (v - static_cast<double>(shift));
    if constexpr (F == Fold::sum_exp) v = std::exp(v - static_cast<double>(shift));
    total = fold_join(F, total, v);
  }
  return total;
}

template <Fold F, class T>
void fold_rows_as(const T* HWY_RESTRICT x, std::size_t rows, std::size_t n, const T* shift, double* result) {
  const bool short_rows = n < hn::Lanes(hn::ScalableTag<T>()) && F != Fold::sum_exp;
  for (std::size_t r = 0; r < rows; ++r) {
    const T s = shift == nullptr ? T{0} : shift[r];
    result[r] = short_rows ? fold_short_run<F>(x + r * n, n, s) : fold_run_as<F>(x + r * n, n, s);
  }
}

template <class T>
void fold_rows_any(Fold fold, const T* x, std::int64_t rows, std::int64_t n, const T* shift, double* result) {
  with_fold(fold, [&]<Fold F>() {
    fold_rows_as<F>(x, static_cast<std::size_t>(rows), static_cast<std::size_t>(n), shift, result);
  });
}

void fold_rows_f32(Fold fold, const float* x, std::int64_t rows, std::int64_t n, const float* shift, double* result) {
  fold_rows_any(fold, x, rows, n, shift, result);
}
void fold_rows_f64(Fold fold, const double* x, std::int64_t rows, std::int64_t n, const double* shift, double* result) {
  fold_rows_any(fold, x, rows, n, shift, result);
}
}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {

HWY_EXPORT(fold_rows_f32);
HWY_EXPORT(fold_rows_f64);

void fold_rows(Fold fold, const float* x, std::int64_t rows, std::int64_t n, const float* shift, double* result) {
  HWY_DYNAMIC_DISPATCH(fold_rows_f32)(fold, x, rows, n, shift, result);
}

void fold_rows(Fold fold, const double* x, std::int64_t rows, std::int64_t n, const double* shift, double* result) {
  HWY_DYNAMIC_DISPATCH(fold_rows_f64)(fold, x, rows, n, shift, result);
}

}  // namespace backpass
#endif  // HWY_ONCE
