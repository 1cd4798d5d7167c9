#include "kernels/normalize.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/fold.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/normalize.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/simd_math-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kBlock = 1024;  // terms added in the element type before going to double

struct Sums {
  double plain = 0, square = 0;
};

/// Sums of x - shift and of its square, as asked for.
template <bool kPlain, bool kSquare, class T>
Sums sums_of(const T* HWY_RESTRICT x, std::size_t n, T shift_value) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto shift = hn::Set(d, shift_value);
  Sums total;
  for (std::size_t i = 0; i < n;) {
    const std::size_t end = std::min(n, i + kBlock);
    auto plain0 = hn::Zero(d), plain1 = hn::Zero(d), square0 = hn::Zero(d), square1 = hn::Zero(d);
    auto add = [&](auto& plain, auto& square, auto v) HWY_ATTR {
      v = hn::Sub(v, shift);
      if constexpr (kPlain) plain = hn::Add(plain, v);
      if constexpr (kSquare) square = hn::MulAdd(v, v, square);
    };
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      add(plain0, square0, hn::LoadU(d, x + i));
      add(plain1, square1, hn::LoadU(d, x + i + lanes));
    }
    for (; i + lanes <= end; i += lanes) add(plain0, square0, hn::LoadU(d, x + i));
    if (i < end) add(plain1, square1, load_some(d, x + i, end - i, shift_value));
    i = end;
    if constexpr (kPlain) total.plain += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(plain0, plain1))));
    if constexpr (kSquare) {
      total.square += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(square0, square1))));
    }
  }
  return total;
}

template <class T>
Moments moments_as(const T* x, std::int64_t n) {
  const auto size = static_cast<std::size_t>(n);
  const auto count = static_cast<double>(n);
  const auto center = static_cast<T>(sums_of<true, false>(x, size, T{0}).plain / count);
  const Sums sums = sums_of<true, true>(x, size, center);
  const double rest = sums.plain / count;
  return {static_cast<double>(center), rest, std::max(0.0, sums.square / count - rest * rest)};
}

/// Without subtracting a mean: the mean square.
template <class T>
Moments mean_square_as(const T* x, std::int64_t n) {
  return {0, 0, sums_of<false, true>(x, static_cast<std::size_t>(n), T{0}).square / static_cast<double>(n)};
}

/// y = ((x - center) * factor + offset) * scale + bias with per-element scale and bias.
template <bool kScale, bool kBias, class T>
void apply_row(const T* x, T* y, std::size_t n, T center, T factor, T offset, const T* HWY_RESTRICT scale,
               const T* HWY_RESTRICT bias) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto m = hn::Set(d, center);
  const auto f = hn::Set(d, factor);
  const auto o = hn::Set(d, offset);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    auto v = hn::MulAdd(hn::Sub(hn::LoadU(d, x + i), m), f, o);
    if constexpr (kScale && kBias) {
      v = hn::MulAdd(v, hn::LoadU(d, scale + i), hn::LoadU(d, bias + i));
    } else if constexpr (kScale) {
      v = hn::Mul(v, hn::LoadU(d, scale + i));
    } else if constexpr (kBias) {
      v = hn::Add(v, hn::LoadU(d, bias + i));
    }
    hn::StoreU(v, d, y + i);
  }
  for (; i < n; ++i) {
    T v = (x[i] - center) * factor + offset;
    if constexpr (kScale) v *= scale[i];
    if constexpr (kBias) v += bias[i];
    y[i] = v;
  }
}

template <class T>
void normalize_rows_as(const RowNorm<T>& p, const T* x, T* y, std::int64_t rows, T* mean, T* inverse) {
  const auto n = static_cast<std::size_t>(p.n);
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* row = x + r * p.n;
    const Moments m = p.centered ? moments_as(row, p.n) : mean_square_as(row, p.n);
    const double factor = 1 / std::sqrt(m.variance + p.epsilon);
    const T* scale = p.scale == nullptr ? nullptr : p.scale + r * p.scale_stride;
    const T* bias = p.bias == nullptr ? nullptr : p.bias + r * p.bias_stride;
    auto apply = scale != nullptr ? (bias != nullptr ? apply_row<true, true, T> : apply_row<true, false, T>)
                                  : (bias != nullptr ? apply_row<false, true, T> : apply_row<false, false, T>);
    apply(row, y + r * p.n, n, static_cast<T>(m.center), static_cast<T>(factor), static_cast<T>(-m.rest * factor),
          scale, bias);
    if (mean != nullptr) mean[r] = static_cast<T>(m.mean());
    if (inverse != nullptr) inverse[r] = static_cast<T>(factor);
  }
}

template <class T>
void affine_run_as(const T* x, T* y, std::int64_t count, T shift, T factor, T offset) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto n = static_cast<std::size_t>(count);
  const auto s = hn::Set(d, shift);
  const auto f = hn::Set(d, factor);
  const auto o = hn::Set(d, offset);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::MulAdd(hn::Sub(hn::LoadU(d, x + i), s), f, o), d, y + i);
  for (; i < n; ++i) y[i] = (x[i] - shift) * factor + offset;
}

template <class T>
void affine_rows_as(const T* x, T* y, std::int64_t rows, std::int64_t n, const T* factor, const T* offset) {
  for (std::int64_t r = 0; r < rows; ++r) {
    apply_row<true, true>(x + r * n, y + r * n, static_cast<std::size_t>(n), T{0}, T{1}, T{0}, factor, offset);
  }
}

void normalize_f32(const RowNorm<float>& p, const float* x, float* y, std::int64_t rows, float* mean, float* inverse) {
  normalize_rows_as(p, x, y, rows, mean, inverse);
}
void normalize_f64(const RowNorm<double>& p, const double* x, double* y, std::int64_t rows, double* mean,
                   double* inverse) {
  normalize_rows_as(p, x, y, rows, mean, inverse);
}
void affine_run_f32(const float* x, float* y, std::int64_t n, float shift, float factor, float offset) {
  affine_run_as(x, y, n, shift, factor, offset);
}
void affine_run_f64(const double* x, double* y, std::int64_t n, double shift, double factor, double offset) {
  affine_run_as(x, y, n, shift, factor, offset);
}
void affine_rows_f32(const float* x, float* y, std::int64_t rows, std::int64_t n, const float* f, const float* o) {
  affine_rows_as(x, y, rows, n, f, o);
}
void affine_rows_f64(const double* x, double* y, std::int64_t rows, std::int64_t n, const double* f, const double* o) {
  affine_rows_as(x, y, rows, n, f, o);
}
Moments moments_f32(const float* x, std::int64_t n) { return moments_as(x, n); }
Moments moments_f64(const double* x, std::int64_t n) { return moments_as(x, n); }

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {

HWY_EXPORT(normalize_f32);
HWY_EXPORT(normalize_f64);
HWY_EXPORT(affine_run_f32);
HWY_EXPORT(affine_run_f64);
HWY_EXPORT(affine_rows_f32);
HWY_EXPORT(affine_rows_f64);
HWY_EXPORT(moments_f32);
HWY_EXPORT(moments_f64);

void normalize_rows(const RowNorm<float>& p, const float* x, float* y, std::int64_t rows, float* mean, float* inverse) {
  HWY_DYNAMIC_DISPATCH(normalize_f32)(p, x, y, rows, mean, inverse);
}
void normalize_rows(const RowNorm<double>& p, const double* x, double* y, std::int64_t rows, double* mean,
                    double* inverse) {
  HWY_DYNAMIC_DISPATCH(normalize_f64)(p, x, y, rows, mean, inverse);
}
void affine_run(const float* x, float* y, std::int64_t n, float shift, float factor, float offset) {
  HWY_DYNAMIC_DISPATCH(affine_run_f32)(x, y, n, shift, factor, offset);
}
void affine_run(const double* x, double* y, std::int64_t n, double shift, double factor, double offset) {
  HWY_DYNAMIC_DISPATCH(affine_run_f64)(x, y, n, shift, factor, offset);
}
void affine_rows(const float* x, float* y, std::int64_t rows, std::int64_t n, const float* f, const float* o) {
  HWY_DYNAMIC_DISPATCH(affine_rows_f32)(x, y, rows, n, f, o);
}
void affine_rows(const double* x, double* y, std::int64_t rows, std::int64_t n, const double* f, const double* o) {
  HWY_DYNAMIC_DISPATCH(affine_rows_f64)(x, y, rows, n, f, o);
}
Moments moments(const float* x, std::int64_t n) { return HWY_DYNAMIC_DISPATCH(moments_f32)(x, n); }
Moments moments(const double* x, std::int64_t n) { return HWY_DYNAMIC_DISPATCH(moments_f64)(x, n); }

}  // namespace backpass
#endif  // HWY_ONCE
