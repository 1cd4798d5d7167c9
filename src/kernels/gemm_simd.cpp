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

// Sums fill the registers but for the operands: 24 of AVX-512's 32, 12 of 16. Of 24 multiplications 11 wait for an
// operand from memory, of 12 there are 8.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
constexpr int kRows = 8;
constexpr int kVectors = 3;
#else
constexpr int kRows = 6;
constexpr int kVectors = 2;
#endif
constexpr int kMostRows = 16;  // of tiles that are narrower than a panel
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
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 3
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

/// How A is stored: row after row, column after column, or in bundles.
enum class Access { rows, columns, bundles };

template <int Rows, int Vectors, Access kAccess, class T>
HWY_NOINLINE void tile(std::int64_t k, const T* HWY_RESTRICT a, std::int64_t lda, const T* HWY_RESTRICT b,
                       T* HWY_RESTRICT c, std::int64_t ldc, const T* bias, std::int64_t cols, const BlockEnd<T>& end) {
  const Tag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  using V = hn::Vec<Tag<T>>;
  V sum[Rows][Vectors];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 3
    for (int j = 0; j < Vectors; ++j) sum[i][j] = hn::Zero(d);
#pragma GCC unroll 3
    for (int j = 0; j < Vectors; ++j) __builtin_prefetch(c + i * ldc + j * lanes, 1);  // there when the sums are
  }
  for (std::int64_t p = 0; p < k; ++p) {
    V columns[Vectors];
#pragma GCC unroll 3
    for (int j = 0; j < Vectors; ++j) columns[j] = hn::Load(d, b + j * lanes);
    __builtin_prefetch(b + kAhead * kVectors * lanes);
    b += kVectors * lanes;
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      const V ai =
          hn::Set(d, kAccess == Access::rows ? a[i * lda + p] : a[p * (kAccess == Access::columns ? lda : Rows) + i]);
#pragma GCC unroll 3
      for (int j = 0; j < Vectors; ++j) sum[i][j] = hn::MulAdd(ai, columns[j], sum[i][j]);
    }
  }
  if (cols == Vectors * lanes) {
    store_tile<Rows, Vectors, T, V>(sum, c, ldc, bias, end);
  } else {
    V copy[Rows][Vectors];  // its address leaves this function, so that the sums themselves may stay in registers
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 3
      for (int j = 0; j < Vectors; ++j) copy[i][j] = sum[i][j];
    }
    store_border<Rows, Vectors, T, V>(copy, c, ldc, bias, cols, end);
  }
}

template <class T>
using TileFunction = void (*)(std::int64_t, const T*, std::int64_t, const T*, T*, std::int64_t, const T*, std::int64_t,
                              const BlockEnd<T>&);

/// Tiles of 1 to sizeof...(Rows) rows, by their number of rows.
template <int Vectors, Access kAccess, class T, int... Rows>
constexpr auto tiles_of(std::integer_sequence<int, Rows...>) {
  return std::array<TileFunction<T>, sizeof...(Rows) + 1>{nullptr, tile<Rows + 1, Vectors, kAccess, T>...};
}

/// Calls f(first row, rows) for tiles of up to `most` rows. They are dealt out evenly: 8 as 4 + 4, not 6 + 2, since a
/// tile of few rows does not fill the multipliers.
template <class F>
HWY_INLINE void for_each_tile(std::int64_t m, std::int64_t most, const F& f) {
  const std::int64_t tiles = (m + most - 1) / most;
  const std::int64_t small = tiles == 0 ? 0 : m / tiles;
  const std::int64_t large_tiles = tiles == 0 ? 0 : m % tiles;
  std::int64_t i = 0;
  for (std::int64_t t = 0; t < tiles; ++t) {
    const std::int64_t rows = small + (t < large_tiles ? 1 : 0);
    f(i, rows);
    i += rows;
  }
}

/// One panel of columns.
template <int Vectors, Access kAccess, class T>
void multiply_panel(std::int64_t m, std::int64_t k, const T* a, std::int64_t lda, const T* b, T* c, std::int64_t ldc,
                    const T* bias, std::int64_t cols, const BlockEnd<T>& end) {
  constexpr int kMost = kAccess == Access::bundles ? kRows : std::min(kMostRows, kVectors * kRows / Vectors);
  constexpr auto kTiles = tiles_of<Vectors, kAccess, T>(std::make_integer_sequence<int, kMost>());
  const std::int64_t step = kAccess == Access::rows ? lda : kAccess == Access::columns ? 1 : k;
  for_each_tile(m, kMost, [&](std::int64_t i, std::int64_t rows) {
    kTiles[static_cast<std::size_t>(rows)](k, a + i * step, lda, b, c + i * ldc, ldc, bias, cols, end);
  });
}

template <Access kAccess, class T>
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b,
              std::int64_t b_stride, T* c, std::int64_t ldc, const BlockEnd<T>& end) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Tag<T>()));
  for (std::int64_t j = 0; j < n; j += kVectors * lanes, b += b_stride) {
    const std::int64_t cols = std::min(kVectors * lanes, n - j);
    const T* bias = end.bias != nullptr ? end.bias + j : nullptr;
    if (cols > 2 * lanes) {
      multiply_panel<kVectors, kAccess>(m, k, a, lda, b, c + j, ldc, bias, cols, end);
    } else if (cols > lanes) {  // vectors that are all zeros are left out of the last panel
      multiply_panel<2, kAccess>(m, k, a, lda, b, c + j, ldc, bias, cols, end);
    } else {
      multiply_panel<1, kAccess>(m, k, a, lda, b, c + j, ldc, bias, cols, end);
    }
  }
}

template <class T>
void multiply_bundles(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const T* b, std::int64_t b_stride,
                      T* c, std::int64_t ldc, const BlockEnd<T>& end) {
  multiply<Access::bundles>(m, n, k, a, std::int64_t{0}, b, b_stride, c, ldc, end);
}

/// A vector that is longer than a bundle's row is written over by the next ones; the last rows are copied exactly.
template <class T>
void bundle(std::int64_t m, std::int64_t k, const T* a, std::int64_t lda, T* out) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  constexpr std::int64_t kRowsAhead = 12;  // each lies on another page, where nothing else fetches ahead
  const hn::CappedTag<T, 8> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t exact = std::max<std::int64_t>(0, k - 2 * lanes);
  for (std::int64_t p = 0; p < k; ++p) {
    const T* from = a + p * lda;
    for (std::int64_t i = 0; i < m; i += kLine) __builtin_prefetch(from + kRowsAhead * lda + i);
    for_each_tile(m, kRows, [&](std::int64_t i, std::int64_t rows) {
      T* to = out + i * k + p * rows;
      if (p >= exact) {
        std::copy_n(from + i, rows, to);
        return;
      }
      for (std::int64_t j = 0; j < rows; j += lanes) hn::StoreU(hn::LoadU(d, from + i + j), d, to + j);
    });
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
    T* to = out + p * kVectors * lanes;
    for (std::int64_t i = 0; i < panels; ++i, from += kVectors * lanes, to += out_stride) {
#pragma GCC unroll 3
      for (int j = 0; j < kVectors; ++j) hn::StoreU(hn::LoadU(d, from + j * lanes), d, to + j * lanes);
    }
  }
}

template <class T>
void pack(bool transposed, std::int64_t k, std::int64_t n, const T* b, std::int64_t ldb, T* out,
          std::int64_t out_stride) {
  const auto panel = static_cast<std::int64_t>(kVectors * hn::Lanes(Tag<T>()));
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
  return {static_cast<std::int64_t>(kVectors * hn::Lanes(Tag<T>())),
          kRows,
          multiply<Access::rows, T>,
          multiply<Access::columns, T>,
          multiply_bundles<T>,
          bundle<T>,
          pack<T>};
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
