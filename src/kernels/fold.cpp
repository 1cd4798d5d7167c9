#include "kernels/fold.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "kernels/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/fold.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/simd_math-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kRunBlock = 1024;  // elements added up in the element type before going to double
constexpr std::size_t kRowBlock = 32;    // the same for rows of columns

constexpr bool is_sum(Fold f) {
  return f == Fold::sum || f == Fold::sum_abs || f == Fold::sum_square || f == Fold::sum_exp;
}

/// What fills lanes beyond the end, so that they change nothing.
template <Fold F, class T>
T filler(T shift = T{0}) {
  if constexpr (F == Fold::sum_square) return shift;
  if constexpr (F == Fold::sum_exp || F == Fold::maximum) return -std::numeric_limits<T>::infinity();
  if constexpr (F == Fold::minimum) return std::numeric_limits<T>::infinity();
  if constexpr (F == Fold::product) return T{1};
  return T{0};
}

template <Fold F, class D, class V>
HWY_INLINE V contribution(D d, V x, V shift) {
  if constexpr (F == Fold::sum_abs) return hn::Abs(x);
  if constexpr (F == Fold::sum_square) {
    const V deviation = hn::Sub(x, shift);
    return hn::Mul(deviation, deviation);
  }
  if constexpr (F == Fold::sum_exp) return exp_keeping_nan(d, hn::Sub(x, shift));
  return x;
}

/// A vector of running results; extrema also remember whether a NaN went by, which the hardware instructions forget.
template <Fold F, class D>
struct Accumulator {
  using V = hn::Vec<D>;
  V value;
  V nan;

  HWY_INLINE explicit Accumulator(D d) : value(hn::Set(d, start())), nan(hn::Zero(d)) {}
  static hn::TFromD<D> start() {
    using T = hn::TFromD<D>;
    return is_sum(F) ? T{0} : filler<F, T>();
  }
  HWY_INLINE void add(D d, V x) {
    if constexpr (F == Fold::maximum || F == Fold::minimum) {
      nan = hn::Or(nan, hn::VecFromMask(d, hn::IsNaN(x)));
      value = F == Fold::maximum ? hn::Max(value, x) : hn::Min(value, x);
    } else if constexpr (F == Fold::product) {
      value = hn::Mul(value, x);
    } else {
      value = hn::Add(value, x);
    }
  }
  HWY_INLINE void join(D d, const Accumulator& other) {
    nan = hn::Or(nan, other.nan);
    add(d, other.value);
  }
  /// Joins lane i into acc[i] for i < n.
  HWY_INLINE void spill(D d, double* acc, std::size_t n) const {
    HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(D())];
    V all = value;
    if constexpr (F == Fold::maximum || F == Fold::minimum) all = hn::Or(value, nan);
    hn::Store(all, d, lanes);
    for (std::size_t i = 0; i < n; ++i) acc[i] = fold_join(F, acc[i], static_cast<double>(lanes[i]));
  }
};

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
    double partial[hn::MaxLanes(decltype(d)())];
    std::fill_n(partial, lanes, fold_identity(F));
    a0.spill(d, partial, lanes);
    for (std::size_t k = lanes / 2; k > 0; k /= 2) {
      for (std::size_t j = 0; j < k; ++j) partial[j] = fold_join(F, partial[j], partial[j + k]);
    }
    total = fold_join(F, total, partial[0]);
  }
  return total;
}

/// One strip of `Vectors` vectors of columns, from top to bottom.
template <Fold F, int Vectors, class T>
HWY_INLINE void fold_strip(const T* HWY_RESTRICT x, std::size_t stride, std::size_t rows, const T* shift, double* acc) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t block = is_sum(F) ? kRowBlock : rows;
  for (std::size_t r = 0; r < rows;) {
    const std::size_t end = std::min(rows, r + block);
    Accumulator<F, decltype(d)> a0(d), a1(d);
    const auto s0 = shift == nullptr ? hn::Zero(d) : hn::LoadU(d, shift);
    const auto s1 = shift == nullptr || Vectors == 1 ? hn::Zero(d) : hn::LoadU(d, shift + lanes);
    for (; r < end; ++r) {
      a0.add(d, contribution<F>(d, hn::LoadU(d, x + r * stride), s0));
      if constexpr (Vectors == 2) a1.add(d, contribution<F>(d, hn::LoadU(d, x + r * stride + lanes), s1));
    }
    a0.spill(d, acc, lanes);
    if constexpr (Vectors == 2) a1.spill(d, acc + lanes, lanes);
  }
}

/// Fewer columns than a vector has lanes.
template <Fold F, class T>
void fold_narrow(const T* HWY_RESTRICT x, std::size_t stride, std::size_t rows, std::size_t width, const T* shift,
                 double* acc) {
  const hn::ScalableTag<T> d;
  const std::size_t block = is_sum(F) ? kRowBlock : rows;
  const auto s = shift == nullptr ? hn::Zero(d) : load_some(d, shift, width, T{0});
  for (std::size_t r = 0; r < rows;) {
    const std::size_t end = std::min(rows, r + block);
    Accumulator<F, decltype(d)> a(d);
    for (; r < end; ++r) a.add(d, contribution<F>(d, load_some(d, x + r * stride, width, filler<F, T>()), s));
    a.spill(d, acc, width);
  }
}

template <Fold F, class T>
void fold_columns_as(const T* HWY_RESTRICT x, std::size_t stride, std::size_t rows, std::size_t width, const T* shift,
                     double* acc) {
  const std::size_t lanes = hn::Lanes(hn::ScalableTag<T>());
  std::size_t c = 0;
  auto shift_at = [&](std::size_t i) { return shift == nullptr ? nullptr : shift + i; };
  for (; c + 2 * lanes <= width; c += 2 * lanes) fold_strip<F, 2>(x + c, stride, rows, shift_at(c), acc + c);
  for (; c + lanes <= width; c += lanes) fold_strip<F, 1>(x + c, stride, rows, shift_at(c), acc + c);
  if (c < width) fold_narrow<F>(x + c, stride, rows, width - c, shift_at(c), acc + c);
}

template <class F>
HWY_INLINE void with_fold(Fold fold, F&& f) {
  switch (fold) {
    case Fold::sum:
      return f.template operator()<Fold::sum>();
    case Fold::sum_abs:
      return f.template operator()<Fold::sum_abs>();
    case Fold::sum_square:
      return f.template operator()<Fold::sum_square>();
    case Fold::sum_exp:
      return f.template operator()<Fold::sum_exp>();
    case Fold::maximum:
      return f.template operator()<Fold::maximum>();
    case Fold::minimum:
      return f.template operator()<Fold::minimum>();
    case Fold::product:
      return f.template operator()<Fold::product>();
  }
}

template <class T>
double fold_run_any(Fold fold, const T* x, std::int64_t n, T shift) {
  double result = 0;
  with_fold(fold, [&]<Fold F>() { result = fold_run_as<F>(x, static_cast<std::size_t>(n), shift); });
  return result;
}

template <class T>
void fold_columns_any(Fold fold, const T* x, std::int64_t stride, std::int64_t rows, std::int64_t width, const T* shift,
                      double* acc) {
  with_fold(fold, [&]<Fold F>() {
    fold_columns_as<F>(x, static_cast<std::size_t>(stride), static_cast<std::size_t>(rows),
                       static_cast<std::size_t>(width), shift, acc);
  });
}

double fold_run_f32(Fold fold, const float* x, std::int64_t n, float s) { return fold_run_any(fold, x, n, s); }
double fold_run_f64(Fold fold, const double* x, std::int64_t n, double s) { return fold_run_any(fold, x, n, s); }
void fold_columns_f32(Fold fold, const float* x, std::int64_t stride, std::int64_t rows, std::int64_t width,
                      const float* shift, double* acc) {
  fold_columns_any(fold, x, stride, rows, width, shift, acc);
}
void fold_columns_f64(Fold fold, const double* x, std::int64_t stride, std::int64_t rows, std::int64_t width,
                      const double* shift, double* acc) {
  fold_columns_any(fold, x, stride, rows, width, shift, acc);
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {

HWY_EXPORT(fold_run_f32);
HWY_EXPORT(fold_run_f64);
HWY_EXPORT(fold_columns_f32);
HWY_EXPORT(fold_columns_f64);

double fold_run(Fold fold, const float* x, std::int64_t n, float shift) {
  return HWY_DYNAMIC_DISPATCH(fold_run_f32)(fold, x, n, shift);
}

double fold_run(Fold fold, const double* x, std::int64_t n, double shift) {
  return HWY_DYNAMIC_DISPATCH(fold_run_f64)(fold, x, n, shift);
}

void fold_columns(Fold fold, const float* x, std::int64_t stride, std::int64_t rows, std::int64_t width,
                  const float* shift, double* acc) {
  HWY_DYNAMIC_DISPATCH(fold_columns_f32)(fold, x, stride, rows, width, shift, acc);
}

void fold_columns(Fold fold, const double* x, std::int64_t stride, std::int64_t rows, std::int64_t width,
                  const double* shift, double* acc) {
  HWY_DYNAMIC_DISPATCH(fold_columns_f64)(fold, x, stride, rows, width, shift, acc);
}

}  // namespace backpass
#endif  // HWY_ONCE
