#include "kernels/gemm_simd.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/simd_fixed.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm_simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/gemm_pack-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kMostRows = 16;  // of tiles that are narrower than a panel
// Steps of k by which B is fetched ahead: the first tile to use a panel finds it in a slower cache.
constexpr std::int64_t kAhead = 24;

/// Stores sums as they are, or added to what C holds.
template <bool kAdd, class D, int Rows, int Vectors, class T, class V>
HWY_INLINE void store_sums(D d, const V (&sum)[Rows][Vectors], T* HWY_RESTRICT c, std::int64_t ldc) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 3
    for (int j = 0; j < Vectors; ++j) {
      T* to = c + i * ldc + j * lanes;
      hn::StoreU(kAdd ? hn::Add(sum[i][j], hn::LoadU(d, to)) : sum[i][j], d, to);
    }
  }
}

/// Stores the sums of one tile of `Rows` rows and `Vectors` vectors of columns.
template <class D, int Rows, int Vectors, class T, class V>
HWY_INLINE void store_tile(D d, const V (&sum)[Rows][Vectors], T* HWY_RESTRICT c, std::int64_t ldc,
                           const T* HWY_RESTRICT bias, const BlockEnd<T>& end) {
  if (end.alpha == T(1) && bias == nullptr && !end.relu) {  // next to nothing to do, which counts where k is short
    if (end.beta == T(0)) return store_sums<false>(d, sum, c, ldc);
    if (end.beta == T(1)) return store_sums<true>(d, sum, c, ldc);
  }
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
template <class D, int Rows, int Vectors, class T, class V>
HWY_NOINLINE void store_border(D d, const V (&sum)[Rows][Vectors], T* HWY_RESTRICT c, std::int64_t ldc, const T* bias,
                               std::int64_t cols, const BlockEnd<T>& end) {
  const auto width = static_cast<std::int64_t>(Vectors * hn::Lanes(d));
  HWY_ALIGN T tile[Rows * Vectors * HWY_MAX_BYTES / sizeof(T)];
  HWY_ALIGN T bias_copy[Vectors * HWY_MAX_BYTES / sizeof(T)] = {};
  if (bias != nullptr) std::copy_n(bias, cols, bias_copy);
  for (int i = 0; i < Rows; ++i) std::copy_n(c + i * ldc, end.beta != T(0) ? cols : 0, tile + i * width);
  for (int i = 0; i < Rows; ++i) std::fill(tile + i * width + cols, tile + (i + 1) * width, T(0));
  store_tile(d, sum, tile, width, bias != nullptr ? bias_copy : nullptr, end);
  for (int i = 0; i < Rows; ++i) std::copy_n(tile + i * width, cols, c + i * ldc);
}

/// How A is stored: row after row, column after column, or in bundles.
enum class Access { rows, columns, bundles };

/// One tile of C.
template <class T>
struct Tile {
  std::int64_t k;
  const T* a;
  std::int64_t lda;
  const T* b;
  std::int64_t b_step;  ///< elements from one row of the panel to the next
  T* keep;              ///< where tiles that pack store what they read of B
  T* c;
  std::int64_t ldc;
  const T* bias;
  std::int64_t cols;
};

template <class D, int Rows, int Vectors, Access kAccess, bool kPacks, class T = hn::TFromD<D>>
HWY_NOINLINE void sum_tile(const Tile<T>& t, const BlockEnd<T>& end) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  using V = hn::Vec<D>;
  const T* HWY_RESTRICT a = t.a;
  const T* HWY_RESTRICT b = t.b;
  T* HWY_RESTRICT keep = t.keep;
  const std::int64_t lda = t.lda;
  const std::int64_t b_step = t.b_step;
  V sum[Rows][Vectors];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 3
    for (int j = 0; j < Vectors; ++j) sum[i][j] = hn::Zero(d);
#pragma GCC unroll 3
    for (int j = 0; j < Vectors; ++j) __builtin_prefetch(t.c + i * t.ldc + j * lanes, 1);  // there when the sums are
  }
  for (std::int64_t p = 0, k = t.k; p < k; ++p) {
    V columns[Vectors];
#pragma GCC unroll 3
    for (int j = 0; j < Vectors; ++j) {
      columns[j] = hn::LoadU(d, b + j * lanes);
      if constexpr (kPacks) hn::Store(columns[j], d, keep + j * lanes);
    }
    __builtin_prefetch(b + kAhead * b_step);
    if constexpr (kPacks) {
#pragma GCC unroll 3
      for (int j = 1; j < Vectors; ++j) __builtin_prefetch(b + kAhead * b_step + j * lanes);
      keep += Vectors * lanes;
    }
    b += b_step;
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      const V ai =
          hn::Set(d, kAccess == Access::rows ? a[i * lda + p] : a[p * (kAccess == Access::columns ? lda : Rows) + i]);
#pragma GCC unroll 3
      for (int j = 0; j < Vectors; ++j) sum[i][j] = hn::MulAdd(ai, columns[j], sum[i][j]);
    }
  }
  if (t.cols == Vectors * lanes) {
    store_tile(d, sum, t.c, t.ldc, t.bias, end);
  } else {
    V copy[Rows][Vectors];  // its address leaves this function, so that the sums themselves may stay in registers
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 3
      for (int j = 0; j < Vectors; ++j) copy[i][j] = sum[i][j];
    }
    store_border(d, copy, t.c, t.ldc, t.bias, t.cols, end);
  }
}

template <class T>
using TileFunction = void (*)(const Tile<T>&, const BlockEnd<T>&);

/// Tiles of 1 to sizeof...(Rows) rows, by their number of rows.
template <class D, int Vectors, Access kAccess, bool kPacks, int... Rows>
constexpr auto tiles_of(std::integer_sequence<int, Rows...>) {
  return std::array<TileFunction<hn::TFromD<D>>, sizeof...(Rows) + 1>{
      nullptr, sum_tile<D, Rows + 1, Vectors, kAccess, kPacks>...};
}

/// One panel of columns, given by its first tile. Where tiles pack, the first one does, for all others.
template <class D, int Vectors, Access kAccess, bool kPacks, class T>
void multiply_panel(std::int64_t m, Tile<T> t, const BlockEnd<T>& end) {
  constexpr int kMost = kAccess == Access::bundles ? kRows : std::min(kMostRows, kVectors * kRows / Vectors);
  constexpr auto kTiles = tiles_of<D, Vectors, kAccess, false>(std::make_integer_sequence<int, kMost>());
  constexpr auto kPacking = tiles_of<D, Vectors, kAccess, kPacks>(std::make_integer_sequence<int, kMost>());
  const std::int64_t step = kAccess == Access::rows ? t.lda : kAccess == Access::columns ? 1 : t.k;
  for_each_tile(m, kMost, [&](std::int64_t i, std::int64_t rows) {
    (kPacks && i == 0 ? kPacking : kTiles)[static_cast<std::size_t>(rows)](t, end);
    t.a += rows * step;
    t.c += rows * t.ldc;
    if constexpr (kPacks) {
      t.b = t.keep;
      t.b_step = panel_columns<T>();
    }
  });
}

/// Columns right of the last whole vector that half a vector holds: half the work where vectors are the longest.
template <class T>
std::int64_t half_columns(std::int64_t cols) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Tag<T>()));
  const auto half = static_cast<std::int64_t>(hn::Lanes(NarrowTag<T>()));
  return half < lanes && cols % lanes <= half ? cols % lanes : 0;
}

/// The last panel: vectors that are all zeros are left out.
template <Access kAccess, class T>
void multiply_last_panel(std::int64_t m, Tile<T> t, const BlockEnd<T>& end) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Tag<T>()));
  const std::int64_t half = half_columns<T>(t.cols);
  t.cols -= half;
  if (t.cols > 2 * lanes) {
    multiply_panel<Tag<T>, kVectors, kAccess, false>(m, t, end);
  } else if (t.cols > lanes) {
    multiply_panel<Tag<T>, 2, kAccess, false>(m, t, end);
  } else if (t.cols > 0) {
    multiply_panel<Tag<T>, 1, kAccess, false>(m, t, end);
  }
  if (half == 0) return;
  t.b += t.cols;
  t.c += t.cols;
  if (t.bias != nullptr) t.bias += t.cols;
  t.cols = half;
  multiply_panel<NarrowTag<T>, 1, kAccess, false>(m, t, end);
}

template <Access kAccess, class T>
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b,
              std::int64_t b_stride, T* c, std::int64_t ldc, const BlockEnd<T>& end) {
  const std::int64_t panel = panel_columns<T>();
  for (std::int64_t j = 0; j < n; j += panel, b += b_stride) {
    const std::int64_t cols = std::min(panel, n - j);
    const Tile<T> first{k, a, lda, b, panel, nullptr, c + j, ldc, end.bias != nullptr ? end.bias + j : nullptr, cols};
    if (cols == panel) {
      multiply_panel<Tag<T>, kVectors, kAccess, false>(m, first, end);
    } else {
      multiply_last_panel<kAccess>(m, first, end);
    }
  }
}

template <class T>
void multiply_bundles(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const T* b, std::int64_t b_stride,
                      T* c, std::int64_t ldc, const BlockEnd<T>& end) {
  multiply<Access::bundles>(m, n, k, a, std::int64_t{0}, b, b_stride, c, ldc, end);
}

template <Access kAccess, class T>
void multiply_unpacked(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b,
                       std::int64_t ldb, T* room, T* c, std::int64_t ldc, const BlockEnd<T>& end) {
  const std::int64_t panel = panel_columns<T>();
  for (std::int64_t j = 0; j < n; j += panel) {
    const Tile<T> first{k, a, lda, b + j, ldb, room, c + j, ldc, end.bias != nullptr ? end.bias + j : nullptr, panel};
    multiply_panel<Tag<T>, kVectors, kAccess, true>(m, first, end);
  }
}

template <class T>
void multiply_unpacked_by(bool bundles, std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda,
                          const T* b, std::int64_t ldb, T* room, T* c, std::int64_t ldc, const BlockEnd<T>& end) {
  const auto run = bundles ? multiply_unpacked<Access::bundles, T> : multiply_unpacked<Access::rows, T>;
  run(m, n, k, a, lda, b, ldb, room, c, ldc, end);
}

template <class T>
GemmKernels<T> table() {
  return {panel_columns<T>(),
          kVectors,
          kRows,
          multiply<Access::rows, T>,
          multiply<Access::columns, T>,
          multiply_bundles<T>,
          multiply_unpacked_by<T>,
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
