#include "kernels/softmax.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "support/parallel.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/softmax.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/simd_math-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kSumBlock = 1024;  // terms added in the element type before going to double
constexpr std::int64_t kRowsAtOnce = 16;

template <class T>
constexpr T kNothing = -std::numeric_limits<T>::infinity();

template <class T>
T largest(const T* HWY_RESTRICT x, std::size_t n) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  auto a = hn::Set(d, kNothing<T>);
  auto b = a;
  std::size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    a = hn::Max(a, hn::LoadU(d, x + i));
    b = hn::Max(b, hn::LoadU(d, x + i + lanes));
  }
  for (; i + lanes <= n; i += lanes) a = hn::Max(a, hn::LoadU(d, x + i));
  if (i < n) b = hn::Max(b, load_some(d, x + i, n - i, kNothing<T>));
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(a, b)));
}

/// Sum of exp(x - shift); the terms themselves go to y unless y is null.
template <bool kStore, class T>
double sum_exp(const T* x, T* y, std::size_t n, T shift_value) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto shift = hn::Set(d, shift_value);
  double total = 0;
  std::size_t i = 0;
  auto term = [&](std::size_t at) HWY_ATTR {
    auto e = exp_of_negative(d, hn::Sub(hn::LoadU(d, x + at), shift));
    if constexpr (kStore) hn::StoreU(e, d, y + at);
    return e;
  };
  while (i < n) {
    const std::size_t end = std::min(n, i + kSumBlock);
    auto a = hn::Zero(d);
    auto b = hn::Zero(d);
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      a = hn::Add(a, term(i));
      b = hn::Add(b, term(i + lanes));
    }
    for (; i + lanes <= end; i += lanes) a = hn::Add(a, term(i));
    if (i < end) {
      auto e = exp_of_negative(d, hn::Sub(load_some(d, x + i, end - i, kNothing<T>), shift));
      if constexpr (kStore) store_some(d, e, y + i, end - i);
      b = hn::Add(b, e);
      i = end;
    }
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(a, b))));
  }
  return total;
}

template <class T>
void scale_run(T* y, std::size_t n, T factor) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto f = hn::Set(d, factor);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, y + i), f), d, y + i);
  for (; i < n; ++i) y[i] *= factor;
}

/// y = x - first - second. Two subtractions keep large inputs exact.
template <class T>
void subtract_run(const T* x, T* y, std::size_t n, T first, T second) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto v1 = hn::Set(d, first);
  const auto v2 = hn::Set(d, second);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Sub(hn::Sub(hn::LoadU(d, x + i), v1), v2), d, y + i);
  for (; i < n; ++i) y[i] = x[i] - first - second;
}

/// Each pass goes over a few rows, so that the end of one row overlaps with the start of the next. `log_sums`: null, or
/// where log(sum(exp(x))) of each row goes.
template <class T>
void softmax_few_rows(const T* x, T* y, std::size_t rows, std::size_t n, bool log, double* log_sums) {
  T shift[kRowsAtOnce];
  double sum[kRowsAtOnce];
  for (std::size_t r = 0; r < rows; ++r) shift[r] = largest(x + r * n, n);
  for (std::size_t r = 0; r < rows; ++r) {
    sum[r] = log ? sum_exp<false>(x + r * n, y, n, shift[r]) : sum_exp<true>(x + r * n, y + r * n, n, shift[r]);
  }
  for (std::size_t r = 0; r < rows; ++r) {
    if (log) {
      const double log_sum = std::log(sum[r]);
      subtract_run(x + r * n, y + r * n, n, shift[r], static_cast<T>(log_sum));
      if (log_sums != nullptr) log_sums[r] = static_cast<double>(shift[r]) + log_sum;
    } else {
      scale_run(y + r * n, n, static_cast<T>(1 / sum[r]));
    }
  }
}

template <class T>
void softmax_rows_as(const T* x, T* y, std::int64_t rows, std::int64_t n, bool log, double* log_sums = nullptr) {
  constexpr std::int64_t kCached = 4096;  // elements that stay in the first-level cache
  std::int64_t step = std::clamp<std::int64_t>(kCached / std::max<std::int64_t>(n, 1), 1, kRowsAtOnce);
  for (std::int64_t r = 0; r < rows; r += step) {
    softmax_few_rows(x + r * n, y + r * n, static_cast<std::size_t>(std::min(step, rows - r)),
                     static_cast<std::size_t>(n), log, log_sums == nullptr ? nullptr : log_sums + r);
  }
}

/// Walks the rows of a tile of columns in vectors, in memory order. f(x, offset in the tile) gives what goes to y.
template <bool kStore, class T, class F>
HWY_INLINE void map_tile(const T* x, T* y, std::size_t n, std::size_t stride, std::size_t width, const F& f) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i < n; ++i) {
    const T* from = x + i * stride;
    T* to = y + i * stride;
    std::size_t c = 0;
    for (; c + lanes <= width; c += lanes) {
      const auto v = f(hn::LoadU(d, from + c), c);
      if constexpr (kStore) hn::StoreU(v, d, to + c);
    }
    if (c == width) continue;
    const auto v = f(load_some(d, from + c, width - c, T{0}), c);
    if constexpr (kStore) store_some(d, v, to + c, width - c);
  }
}

/// Up to kSoftmaxTile columns.
template <class T>
void softmax_tile(const T* x, T* y, std::size_t n, std::size_t stride, std::size_t width, bool log) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  HWY_ALIGN T shift[kSoftmaxTile];
  HWY_ALIGN T sum[kSoftmaxTile];
  std::fill_n(shift, kSoftmaxTile, kNothing<T>);
  std::fill_n(sum, kSoftmaxTile, T{0});
  map_tile<false>(x, y, n, stride, width, [&](V v, std::size_t c) HWY_ATTR {
    hn::Store(hn::Max(hn::Load(d, shift + c), v), d, shift + c);
    return v;
  });
  auto term = [&](V v, std::size_t c) HWY_ATTR {
    const V e = exp_of_negative(d, hn::Sub(v, hn::Load(d, shift + c)));
    hn::Store(hn::Add(hn::Load(d, sum + c), e), d, sum + c);
    return e;
  };
  if (log) {
    map_tile<false>(x, y, n, stride, width, term);
    for (std::size_t c = 0; c < width; ++c) sum[c] = std::log(sum[c]);
    map_tile<true>(x, y, n, stride, width, [&](V v, std::size_t c) HWY_ATTR {
      return hn::Sub(hn::Sub(v, hn::Load(d, shift + c)), hn::Load(d, sum + c));
    });
  } else {
    map_tile<true>(x, y, n, stride, width, term);
    for (std::size_t c = 0; c < width; ++c) sum[c] = T{1} / sum[c];
    map_tile<true>(y, y, n, stride, width,
                   [&](V v, std::size_t c) HWY_ATTR { return hn::Mul(v, hn::Load(d, sum + c)); });
  }
}

template <class T>
void softmax_columns_as(const T* x, T* y, std::int64_t n, std::int64_t stride, std::int64_t width, bool log) {
  for (std::int64_t c = 0; c < width; c += kSoftmaxTile) {
    softmax_tile(x + c, y + c, static_cast<std::size_t>(n), static_cast<std::size_t>(stride),
                 static_cast<std::size_t>(std::min(kSoftmaxTile, width - c)), log);
  }
}

template <class T>
double log_sum_exp_as(const T* x, std::int64_t n) {
  const T shift = largest(x, static_cast<std::size_t>(n));
  return static_cast<double>(shift) +
         std::log(sum_exp<false>(x, static_cast<T*>(nullptr), static_cast<std::size_t>(n), shift));
}

template <class T>
void exp_times_as(const T* x, T* y, std::int64_t count, const T* factor, bool uniform) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto n = static_cast<std::size_t>(count);
  if (n == 0) return;
  const auto all = hn::Set(d, *factor);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto f = uniform ? all : hn::LoadU(d, factor + i);
    hn::StoreU(hn::Mul(exp_of_negative(d, hn::LoadU(d, x + i)), f), d, y + i);
  }
  if (i == n) return;
  const auto f = uniform ? all : load_some(d, factor + i, n - i, T{0});
  store_some(d, hn::Mul(exp_of_negative(d, load_some(d, x + i, n - i, T{0})), f), y + i, n - i);
}

void log_rows_f32(const float* x, float* y, std::int64_t rows, std::int64_t n, double* log_sums) {
  softmax_rows_as(x, y, rows, n, true, log_sums);
}
void log_rows_f64(const double* x, double* y, std::int64_t rows, std::int64_t n, double* log_sums) {
  softmax_rows_as(x, y, rows, n, true, log_sums);
}
void rows_f32(const float* x, float* y, std::int64_t rows, std::int64_t n, bool log) {
  softmax_rows_as(x, y, rows, n, log);
}
void rows_f64(const double* x, double* y, std::int64_t rows, std::int64_t n, bool log) {
  softmax_rows_as(x, y, rows, n, log);
}
void columns_f32(const float* x, float* y, std::int64_t n, std::int64_t stride, std::int64_t width, bool log) {
  softmax_columns_as(x, y, n, stride, width, log);
}
void columns_f64(const double* x, double* y, std::int64_t n, std::int64_t stride, std::int64_t width, bool log) {
  softmax_columns_as(x, y, n, stride, width, log);
}
double log_sum_exp_f32(const float* x, std::int64_t n) { return log_sum_exp_as(x, n); }
double log_sum_exp_f64(const double* x, std::int64_t n) { return log_sum_exp_as(x, n); }
void exp_times_f32(const float* x, float* y, std::int64_t n, const float* factor, bool uniform) {
  exp_times_as(x, y, n, factor, uniform);
}
void exp_times_f64(const double* x, double* y, std::int64_t n, const double* factor, bool uniform) {
  exp_times_as(x, y, n, factor, uniform);
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {

HWY_EXPORT(log_rows_f32);
HWY_EXPORT(log_rows_f64);
HWY_EXPORT(rows_f32);
HWY_EXPORT(rows_f64);
HWY_EXPORT(columns_f32);
HWY_EXPORT(columns_f64);
HWY_EXPORT(log_sum_exp_f32);
HWY_EXPORT(log_sum_exp_f64);
HWY_EXPORT(exp_times_f32);
HWY_EXPORT(exp_times_f64);

void softmax_rows(const float* x, float* y, std::int64_t rows, std::int64_t n, bool log) {
  HWY_DYNAMIC_DISPATCH(rows_f32)(x, y, rows, n, log);
}
void softmax_rows(const double* x, double* y, std::int64_t rows, std::int64_t n, bool log) {
  HWY_DYNAMIC_DISPATCH(rows_f64)(x, y, rows, n, log);
}
void softmax_columns(const float* x, float* y, std::int64_t n, std::int64_t stride, std::int64_t width, bool log) {
  HWY_DYNAMIC_DISPATCH(columns_f32)(x, y, n, stride, width, log);
}
void softmax_columns(const double* x, double* y, std::int64_t n, std::int64_t stride, std::int64_t width, bool log) {
  HWY_DYNAMIC_DISPATCH(columns_f64)(x, y, n, stride, width, log);
}
double log_sum_exp_row(const float* x, std::int64_t n) { return HWY_DYNAMIC_DISPATCH(log_sum_exp_f32)(x, n); }
double log_sum_exp_row(const double* x, std::int64_t n) { return HWY_DYNAMIC_DISPATCH(log_sum_exp_f64)(x, n); }
void exp_times(const float* x, float* y, std::int64_t n, const float* factor, bool uniform) {
  HWY_DYNAMIC_DISPATCH(exp_times_f32)(x, y, n, factor, uniform);
}
void exp_times(const double* x, double* y, std::int64_t n, const double* factor, bool uniform) {
  HWY_DYNAMIC_DISPATCH(exp_times_f64)(x, y, n, factor, uniform);
}

void log_softmax_rows(const float* x, float* y, std::int64_t rows, std::int64_t n, double* log_sums) {
  HWY_DYNAMIC_DISPATCH(log_rows_f32)(x, y, rows, n, log_sums);
}
void log_softmax_rows(const double* x, double* y, std::int64_t rows, std::int64_t n, double* log_sums) {
  HWY_DYNAMIC_DISPATCH(log_rows_f64)(x, y, rows, n, log_sums);
}
template <class T>
void softmax(const T* x, T* y, std::int64_t outer, std::int64_t n, std::int64_t inner, bool log) {
  constexpr std::int64_t kWorkPerElement = 8;
  if (n == 0) return;
  if (inner == 1) {
    return parallel_for(outer, grain_for(n * kWorkPerElement), [&](std::int64_t begin, std::int64_t end) {
      softmax_rows(x + begin * n, y + begin * n, end - begin, n, log);
    });
  }
  std::int64_t tiles = (inner + kSoftmaxTile - 1) / kSoftmaxTile;
  std::int64_t work = n * std::min(inner, kSoftmaxTile) * kWorkPerElement;
  parallel_for(outer * tiles, grain_for(work), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      std::int64_t c = (item % tiles) * kSoftmaxTile;
      std::int64_t at = (item / tiles) * n * inner + c;
      softmax_columns(x + at, y + at, n, inner, std::min(kSoftmaxTile, inner - c), log);
    }
  });
}
template void softmax(const float*, float*, std::int64_t, std::int64_t, std::int64_t, bool);
template void softmax(const double*, double*, std::int64_t, std::int64_t, std::int64_t, bool);

}  // namespace backpass
#endif  // HWY_ONCE
