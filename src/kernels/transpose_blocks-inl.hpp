// Transposes within blocks of 128 bits, one copy per instruction set.
#if defined(BACKPASS_TRANSPOSE_BLOCKS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef BACKPASS_TRANSPOSE_BLOCKS_INL
#undef BACKPASS_TRANSPOSE_BLOCKS_INL
#else
#define BACKPASS_TRANSPOSE_BLOCKS_INL
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {

/// Interleaving row i with row i + n/2, log2(n) times over, transposes n rows of n elements, n to a block, in every
/// block of the vectors.
template <class D, class V>
HWY_INLINE void transpose_in_blocks(D d, V* HWY_RESTRICT rows) {
  namespace hn = hwy::HWY_NAMESPACE;
  constexpr std::int64_t n = 16 / sizeof(hn::TFromD<D>);
  V next[n];  // NOLINT: std::array would be spilled
#pragma GCC unroll 4
  for (std::int64_t stage = 1; stage < n; stage *= 2) {
#pragma GCC unroll 8
    for (std::int64_t i = 0; i < n / 2; ++i) {
      next[2 * i] = hn::InterleaveLower(d, rows[i], rows[i + n / 2]);
      next[2 * i + 1] = hn::InterleaveUpper(d, rows[i], rows[i + n / 2]);
    }
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < n; ++i) rows[i] = next[i];
  }
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
