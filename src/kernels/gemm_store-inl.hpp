// How sums of a matrix product leave the registers, one copy per instruction set.
#if defined(BACKPASS_GEMM_STORE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef BACKPASS_GEMM_STORE_INL
#undef BACKPASS_GEMM_STORE_INL
#else
#define BACKPASS_GEMM_STORE_INL
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/gemm_simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

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

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
