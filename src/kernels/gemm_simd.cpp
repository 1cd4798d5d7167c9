#include "kernels/gemm_simd.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/simd_fixed.hpp"
#include "kernels/transpose_tile.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm_simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
using kernels::transpose;
namespace hn = hwy::HWY_NAMESPACE;

// Six rows times two vectors fill twelve of sixteen registers and leave room for the operands.
constexpr int kRows = 6;
// Steps of k by which B is fetched ahead: the first tile to use a panel finds it in a slower cache.
constexpr std::int64_t kAhead = 24;

template <class T>
using Tag = hn::ScalableTag<T>;

/// Stores the sums of one tile of `Rows` rows and `Vectors` vectors of columns.
template <int Rows, int Vectors, class T, class V>
HWY_INLINE void store_tile(const V (&sum)[Rows][Vectors], T* HWY_RESTRICT c, std::int64_t ldc,
                           const T* HWY_RESTRICT bias, const BlockEnd<T>& end) {
  const Tag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const V alpha = hn::Set(d, end.alpha);
  const V beta = hn::Set(d, end.beta);
#pragma GCC unroll 12
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < Vectors; ++j) {
      T* to = c + i * ldc + j * lanes;
      V v = hn::Mul(sum[i][j], alpha);
      if (end.beta != T(0)) v = hn::MulAdd(beta, hn::LoadU(d, to), v);
      if (bias != nullptr) v = hn::Add(v, hn::LoadU(d, bias + j * lanes));
      if (end.relu) v = hn::IfThenZeroElse(hn::Lt(v, hn::Zero(d)), v);  // NaN stays
      hn::StoreU(v, d, to);
    }
  }
}

/// One tile at the right border: stored through a buffer so that nothing right of column `cols` is touched.
template <int Rows, int Vectors, class T, class V>
HWY_NOINLINE void store_border(const V (&sum)[Rows][Vectors], T* HWY_RESTRICT c, std::int64_t ldc, const T* bias,
                               std::int64_t cols, const BlockEnd<T>& end) {
  const Tag<T> d;
  const auto width = static_cast<std::int64_t>(Vectors * hn::Lanes(d));
  HWY_ALIGN T tile[Rows * Vectors * HWY_MAX_BYTES / sizeof(T)];
  HWY_ALIGN T bias_copy[Vectors * HWY_MAX_BYTES / sizeof(T)] = {};
  if (bias != nullptr) std::copy_n(bias, cols, bias_copy);
  for (int i = 0; i < Rows; ++i) std::copy_n(c + i * ldc, end.beta != T(0) ? cols : 0, tile + i * width);
  for (int i = 0; i < Rows; ++i) std::fill(tile + i * width + cols, tile + (i + 1) * width, T(0));
  store_tile<Rows, Vectors, T, V>(sum, tile, width, bias != nullptr ? bias_copy : nullptr, end);
  for (int i = 0; i < Rows; ++i) std::copy_n(tile + i * width, cols, c + i * ldc);
}

template <int Rows, int Vectors, bool kTransposed, class T>
HWY_NOINLINE void tile(std::int64_t k, const T* HWY_RESTRICT a, std::int64_t lda, const T* HWY_RESTRICT b,
                       T* HWY_RESTRICT c, std::int64_t ldc, const T* bias, std::int64_t cols, const BlockEnd<T>& end) {
  const Tag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  using V = hn::Vec<Tag<T>>;
  V sum[Rows][Vectors];
#pragma GCC unroll 12
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < Vectors; ++j) sum[i][j] = hn::Zero(d);
    __builtin_prefetch(c + i * ldc, 1);  // there when the sums are
  }
  for (std::int64_t p = 0; p < k; ++p) {
    V columns[Vectors];
#pragma GCC unroll 2
    for (int j = 0; j < Vectors; ++j) columns[j] = hn::Load(d, b + j * lanes);
    __builtin_prefetch(b + kAhead * 2 * lanes);
    b += 2 * lanes;
#pragma GCC unroll 12
    for (int i = 0; i < Rows; ++i) {
      const V ai = hn::Set(d, kTransposed ? a[p * lda + i] : a[i * lda + p]);
#pragma GCC unroll 2
      for (int j = 0; j < Vectors; ++j) sum[i][j] = hn::MulAdd(ai, columns[j], sum[i][j]);
    }
  }
  if (cols == Vectors * lanes) {
    store_tile<Rows, Vectors, T, V>(sum, c, ldc, bias, end);
  } else {
    V copy[Rows][Vectors];  // its address leaves this function, so that the sums themselves may stay in registers
#pragma GCC unroll 12
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 2
      for (int j = 0; j < Vectors; ++j) copy[i][j] = sum[i][j];
    }
    store_border<Rows, Vectors, T, V>(copy, c, ldc, bias, cols, end);
  }
}

template <class T>
using TileFunction = void (*)(std::int64_t, const T*, std::int64_t, const T*, T*, std::int64_t, const T*, std::int64_t,
                              const BlockEnd<T>&);

/// Tiles of 1 to sizeof...(Rows) rows, by their number of rows.
template <int Vectors, bool kTransposed, class T, int... Rows>
constexpr auto tiles_of(std::integer_sequence<int, Rows...>) {
  return std::array<TileFunction<T>, sizeof...(Rows) + 1>{nullptr, tile<Rows + 1, Vectors, kTransposed, T>...};
}

/// One panel of columns. Rows are dealt out evenly: 8 as 4 + 4, not 6 + 2, since a tile of few rows does not fill the
/// multipliers.
template <int Vectors, bool kTransposed, class T>
void multiply_panel(std::int64_t m, std::int64_t k, const T* a, std::int64_t lda, const T* b, T* c, std::int64_t ldc,
                    const T* bias, std::int64_t cols, const BlockEnd<T>& end) {
  constexpr int kMost = 2 * kRows / Vectors;
  constexpr auto kTiles = tiles_of<Vectors, kTransposed, T>(std::make_integer_sequence<int, kMost>());
  const std::int64_t tiles = (m + kMost - 1) / kMost;
  const std::int64_t small = tiles == 0 ? 0 : m / tiles;
  const std::int64_t large_tiles = tiles == 0 ? 0 : m % tiles;
  std::int64_t i = 0;
  for (std::int64_t t = 0; t < tiles; ++t) {
    const std::int64_t rows = small + (t < large_tiles ? 1 : 0);
    kTiles[static_cast<std::size_t>(rows)](k, a + (kTransposed ? i : i * lda), lda, b, c + i * ldc, ldc, bias, cols,
                                           end);
    i += rows;
  }
}

template <bool kTransposed, class T>
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b,
              std::int64_t b_stride, T* c, std::int64_t ldc, const BlockEnd<T>& end) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Tag<T>()));
  for (std::int64_t j = 0; j < n; j += 2 * lanes, b += b_stride) {
    const std::int64_t cols = std::min(2 * lanes, n - j);
    const T* bias = end.bias != nullptr ? end.bias + j : nullptr;
    if (cols > lanes) {
      multiply_panel<2, kTransposed>(m, k, a, lda, b, c + j, ldc, bias, cols, end);
    } else {  // of the last panel's two vectors one is filled up with zeros
      multiply_panel<1, kTransposed>(m, k, a, lda, b, c + j, ldc, bias, cols, end);
    }
  }
}

/// Row by row, so that neighbours in memory are read together.
template <class T>
void pack_whole_panels(std::int64_t k, std::int64_t panels, const T* b, std::int64_t ldb, T* out,
                       std::int64_t out_stride) {
  const Tag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t p = 0; p < k; ++p) {
    const T* from = b + p * ldb;
    T* to = out + p * 2 * lanes;
    for (std::int64_t i = 0; i < panels; ++i, from += 2 * lanes, to += out_stride) {
      hn::StoreU(hn::LoadU(d, from), d, to);
      hn::StoreU(hn::LoadU(d, from + lanes), d, to + lanes);
    }
  }
}

template <class T>
void pack(bool transposed, std::int64_t k, std::int64_t n, const T* b, std::int64_t ldb, T* out,
          std::int64_t out_stride) {
  const auto panel = static_cast<std::int64_t>(2 * hn::Lanes(Tag<T>()));
  const std::int64_t whole = n / panel;
  const std::int64_t cols = n % panel;
  if (transposed) {
    for (std::int64_t i = 0; i < whole; ++i) {
      transpose(b + i * panel * ldb, ldb, out + i * out_stride, panel, k, panel);
    }
  } else {
    pack_whole_panels(k, whole, b, ldb, out, out_stride);
  }
  if (cols == 0) return;
  out += whole * out_stride;
  std::fill_n(out, k * panel, T(0));
  if (transposed) {
    transpose(b + whole * panel * ldb, ldb, out, panel, k, cols);
  } else {
    for (std::int64_t p = 0; p < k; ++p) std::copy_n(b + p * ldb + whole * panel, cols, out + p * panel);
  }
}

template <class T>
GemmKernels<T> table() {
  return {static_cast<std::int64_t>(2 * hn::Lanes(Tag<T>())), kRows, multiply<false, T>, multiply<true, T>, pack<T>};
}

GemmKernels<float> table_float() { return table<float>(); }
GemmKernels<double> table_double() { return table<double>(); }

}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {

HWY_EXPORT(table_float);
HWY_EXPORT(table_double);

template <>
const GemmKernels<float>& gemm_kernels<float>() {
  static const GemmKernels<float> kernels = HWY_DYNAMIC_DISPATCH(table_float)();
  return kernels;
}

template <>
const GemmKernels<double>& gemm_kernels<double>() {
  static const GemmKernels<double> kernels = HWY_DYNAMIC_DISPATCH(table_double)();
  return kernels;
}

}  // namespace backpass
#endif
