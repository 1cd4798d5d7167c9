#include "ops/normalization/softmax_grad_kernel.hpp"

#include <algorithm>
#include <cstddef>

#include "support/parallel.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/normalization/softmax_grad_kernel.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/simd_math-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kRunTerms = 1024;   // terms of a row added in the element type before going to double
constexpr std::size_t kColumnTerms = 64;  // the same for a column
constexpr std::size_t kColumns = 64;      // columns worked on together

/// y, but 0 where it is no number and nothing flows back to it: a model has put something else in its place.
template <class V>
HWY_INLINE V used(V dy, V y) {
  const hn::DFromV<V> d;
  return hn::IfThenZeroElse(hn::And(hn::IsNaN(y), hn::Eq(dy, hn::Zero(d))), y);
}

/// What an element adds to the sum.
template <bool kLog, class V>
HWY_INLINE V term(V dy, V y, V sum) {
  if constexpr (kLog) return hn::Add(sum, dy);
  return hn::MulAdd(dy, used(dy, y), sum);
}

template <bool kLog, class D, class V>
HWY_INLINE V slope(D d, V dy, V y, V sum) {
  if constexpr (kLog) return hn::NegMulAdd(used(dy, exp_of_negative(d, y)), sum, dy);
  return hn::Mul(used(dy, y), hn::Sub(dy, sum));
}

template <bool kLog, class T>
double row_sum(const T* dy, const T* y, std::size_t n) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  double total = 0;
  for (std::size_t i = 0; i < n;) {
    const std::size_t end = std::min(n, i + kRunTerms);
    auto a = hn::Zero(d);
    auto b = hn::Zero(d);
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      a = term<kLog>(hn::LoadU(d, dy + i), hn::LoadU(d, y + i), a);
      b = term<kLog>(hn::LoadU(d, dy + i + lanes), hn::LoadU(d, y + i + lanes), b);
    }
    for (; i + lanes <= end; i += lanes) a = term<kLog>(hn::LoadU(d, dy + i), hn::LoadU(d, y + i), a);
    if (i < end) b = term<kLog>(load_some(d, dy + i, end - i, T{0}), load_some(d, y + i, end - i, T{0}), b);
    i = end;
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(a, b))));
  }
  return total;
}

template <bool kLog, class T>
void rows_as(const T* dy, const T* y, T* dx, std::size_t rows, std::size_t n) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t r = 0; r < rows; ++r, dy += n, y += n, dx += n) {
    const auto sum = hn::Set(d, static_cast<T>(row_sum<kLog>(dy, y, n)));
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      hn::StoreU(slope<kLog>(d, hn::LoadU(d, dy + i), hn::LoadU(d, y + i), sum), d, dx + i);
    }
    if (i == n) continue;
    const auto rest = slope<kLog>(d, load_some(d, dy + i, n - i, T{0}), load_some(d, y + i, n - i, T{0}), sum);
    store_some(d, rest, dx + i, n - i);
  }
}

/// Columns [0, width) of n rows that lie `stride` apart.
template <bool kLog, class T>
void columns_as(const T* dy, const T* y, T* dx, std::size_t n, std::size_t stride, std::size_t width) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  HWY_ALIGN T sum[kColumns];
  double total[kColumns] = {};
  for (std::size_t i = 0; i < n;) {
    std::fill_n(sum, kColumns, T{0});
    for (const std::size_t end = std::min(n, i + kColumnTerms); i < end; ++i) {
      const std::size_t at = i * stride;
      std::size_t c = 0;
      for (; c + lanes <= width; c += lanes) {
        hn::Store(term<kLog>(hn::LoadU(d, dy + at + c), hn::LoadU(d, y + at + c), hn::Load(d, sum + c)), d, sum + c);
      }
      if (c == width) continue;
      const auto g = load_some(d, dy + at + c, width - c, T{0});
      hn::Store(term<kLog>(g, load_some(d, y + at + c, width - c, T{0}), hn::Load(d, sum + c)), d, sum + c);
    }
    for (std::size_t c = 0; c < width; ++c) total[c] += static_cast<double>(sum[c]);
  }
  for (std::size_t c = 0; c < width; ++c) sum[c] = static_cast<T>(total[c]);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t at = i * stride;
    for (std::size_t c = 0; c < width; c += lanes) {
      const auto s = hn::Load(d, sum + c);
      if (c + lanes <= width) {
        hn::StoreU(slope<kLog>(d, hn::LoadU(d, dy + at + c), hn::LoadU(d, y + at + c), s), d, dx + at + c);
      } else {
        const std::size_t rest = width - c;
        const auto g = load_some(d, dy + at + c, rest, T{0});
        store_some(d, slope<kLog>(d, g, load_some(d, y + at + c, rest, T{0}), s), dx + at + c, rest);
      }
    }
  }
}

void grad_rows_f32(const float* dy, const float* y, float* dx, std::size_t rows, std::size_t n, bool log) {
  log ? rows_as<true>(dy, y, dx, rows, n) : rows_as<false>(dy, y, dx, rows, n);
}
void grad_rows_f64(const double* dy, const double* y, double* dx, std::size_t rows, std::size_t n, bool log) {
  log ? rows_as<true>(dy, y, dx, rows, n) : rows_as<false>(dy, y, dx, rows, n);
}
void grad_columns_f32(const float* dy, const float* y, float* dx, std::size_t n, std::size_t stride, std::size_t width,
                      bool log) {
  log ? columns_as<true>(dy, y, dx, n, stride, width) : columns_as<false>(dy, y, dx, n, stride, width);
}
void grad_columns_f64(const double* dy, const double* y, double* dx, std::size_t n, std::size_t stride,
                      std::size_t width, bool log) {
  log ? columns_as<true>(dy, y, dx, n, stride, width) : columns_as<false>(dy, y, dx, n, stride, width);
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

HWY_EXPORT(grad_rows_f32);
HWY_EXPORT(grad_rows_f64);
HWY_EXPORT(grad_columns_f32);
HWY_EXPORT(grad_columns_f64);

void grad_rows(const float* dy, const float* y, float* dx, std::size_t rows, std::size_t n, bool log) {
  HWY_DYNAMIC_DISPATCH(grad_rows_f32)(dy, y, dx, rows, n, log);
}
void grad_rows(const double* dy, const double* y, double* dx, std::size_t rows, std::size_t n, bool log) {
  HWY_DYNAMIC_DISPATCH(grad_rows_f64)(dy, y, dx, rows, n, log);
}
void grad_columns(const float* dy, const float* y, float* dx, std::size_t n, std::size_t stride, std::size_t width,
                  bool log) {
  HWY_DYNAMIC_DISPATCH(grad_columns_f32)(dy, y, dx, n, stride, width, log);
}
void grad_columns(const double* dy, const double* y, double* dx, std::size_t n, std::size_t stride, std::size_t width,
                  bool log) {
  HWY_DYNAMIC_DISPATCH(grad_columns_f64)(dy, y, dx, n, stride, width, log);
}

}  // namespace

template <class T>
void softmax_grad(const T* dy, const T* y, T* dx, std::int64_t outer, std::int64_t n, std::int64_t inner, bool log) {
  constexpr std::int64_t kTile = 64;
  const std::int64_t work = log ? 8 : 2;  // of an element
  const auto size = static_cast<std::size_t>(n);
  if (inner == 1) {
    return parallel_for(outer, grain_for(n * work), [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t at = begin * n;
      grad_rows(dy + at, y + at, dx + at, static_cast<std::size_t>(end - begin), size, log);
    });
  }
  const std::int64_t tiles = (inner + kTile - 1) / kTile;
  parallel_for(outer * tiles, grain_for(n * std::min(inner, kTile) * work), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t first = item % tiles * kTile;
      const std::int64_t at = item / tiles * n * inner + first;
      grad_columns(dy + at, y + at, dx + at, size, static_cast<std::size_t>(inner),
                   static_cast<std::size_t>(std::min(kTile, inner - first)), log);
    }
  });
}
template void softmax_grad(const float*, const float*, float*, std::int64_t, std::int64_t, std::int64_t, bool);
template void softmax_grad(const double*, const double*, double*, std::int64_t, std::int64_t, std::int64_t, bool);

}  // namespace backpass
#endif  // HWY_ONCE
