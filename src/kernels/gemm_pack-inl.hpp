// How operands of a matrix product are stored for the innermost loops, one copy per instruction set.
#if defined(BACKPASS_GEMM_PACK_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef BACKPASS_GEMM_PACK_INL
#undef BACKPASS_GEMM_PACK_INL
#else
#define BACKPASS_GEMM_PACK_INL
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/transpose_blocks-inl.hpp"
#include "kernels/transpose_tile.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
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

template <class T>
using Tag = hn::ScalableTag<T>;
/// Half of the longest vectors; elsewhere a whole one.
template <class T>
using NarrowTag = hn::CappedTag<T, 32 / sizeof(T)>;

template <class T>
std::int64_t panel_columns() {
  return static_cast<std::int64_t>(kVectors * hn::Lanes(Tag<T>()));
}

/// Of a cache line.
template <class T>
constexpr std::int64_t line_elements() {
  return 64 / sizeof(T);
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

/// Some rows of what is given at a time, so that what is written of a bundle lies together. A vector that is longer
/// than a bundle's row is written over by the next ones; the last rows are copied exactly.
template <class T>
void bundle(std::int64_t m, std::int64_t k, const T* a, std::int64_t lda, T* out) {
  constexpr std::int64_t kTogether = 8;  // each on another page, where nothing else fetches ahead
  const hn::CappedTag<T, 8> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t exact = std::max<std::int64_t>(0, k - 2 * lanes);
  for (std::int64_t p0 = 0; p0 < k; p0 += kTogether) {
    const std::int64_t p1 = std::min(k, p0 + kTogether);
    for_each_tile(m, kRows, [&](std::int64_t i, std::int64_t rows) {
      const T* from = a + p0 * lda + i;
      T* to = out + i * k + p0 * rows;
      for (std::int64_t p = p0; p < p1; ++p, from += lda, to += rows) {
        __builtin_prefetch(from + kTogether * lda, 0, 2);
        if (p >= exact) {
          std::copy_n(from, rows, to);
          continue;
        }
        for (std::int64_t j = 0; j < rows; j += lanes) hn::StoreU(hn::LoadU(d, from + j), d, to + j);
      }
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

#if HWY_TARGET == HWY_SCALAR
template <class T>
void pack_turned_panel(std::int64_t k, const T* b, std::int64_t ldb, T* out) {
  kernels::transpose(b, ldb, out, panel_columns<T>(), k, panel_columns<T>());
}
#else

/// A vector of one or two blocks of 128 bits, the second `distance` elements behind the first. Where two blocks meet in
/// a register on their way from memory, nothing has to cross between the halves of registers later on.
template <class T, class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const T* HWY_RESTRICT from, std::int64_t distance) {
  const hn::Full128<T> block;
  if constexpr (hn::MaxLanes(D()) * sizeof(T) > 16) {
    return hn::Combine(d, hn::LoadU(block, from + distance), hn::LoadU(block, from));
  } else {
    return hn::LoadU(d, from);
  }
}

/// As many rows of B as a vector has lanes, and as many of their elements as a block of 128 bits holds, the other way
/// round.
template <class D, class T>
HWY_INLINE void turn_block(D d, const T* HWY_RESTRICT b, std::int64_t ldb, T* HWY_RESTRICT out, std::int64_t step) {
  constexpr std::int64_t n = 16 / sizeof(T);
  hn::Vec<D> rows[n];  // NOLINT: std::array would be spilled
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < n; ++i) rows[i] = load_blocks(d, b + i * ldb, n * ldb);
  transpose_in_blocks(d, rows);
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < n; ++i) hn::StoreU(rows[i], d, out + i * step);
}

/// The same for a cache line of each row. Not inlined, or the compiler would keep more addresses than it has registers.
template <class T>
HWY_NOINLINE void turn_lines(const T* HWY_RESTRICT b, std::int64_t ldb, T* HWY_RESTRICT out, std::int64_t step) {
  constexpr std::int64_t kEdge = 16 / sizeof(T);
  constexpr std::int64_t kLine = line_elements<T>();
  const NarrowTag<T> d;
#pragma GCC unroll 4
  for (std::int64_t q = 0; q < kLine; q += kEdge) {
    turn_block(d, b + q, ldb, out + q * step, step);
  }
}

/// One panel of B given as [n, k]: a cache line of every row at a time, so that what is written lies together.
template <class T>
void pack_turned_panel(std::int64_t k, const T* b, std::int64_t ldb, T* out) {
  constexpr std::int64_t kLine = line_elements<T>();
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(NarrowTag<T>()));
  const std::int64_t panel = panel_columns<T>();
  const std::int64_t whole = k / kLine * kLine;
  for (std::int64_t p = 0; p < whole; p += kLine) {
    for (std::int64_t j = 0; j < panel; j += lanes) turn_lines(b + j * ldb + p, ldb, out + p * panel + j, panel);
  }
  kernels::transpose(b + whole, ldb, out + whole * panel, panel, k - whole, panel);
}
#endif

template <class T>
void pack(bool transposed, std::int64_t k, std::int64_t n, const T* b, std::int64_t ldb, T* out,
          std::int64_t out_stride) {
  const std::int64_t panel = panel_columns<T>();
  const std::int64_t whole = n / panel;
  const std::int64_t cols = n % panel;
  if (transposed) {
    for (std::int64_t i = 0; i < whole; ++i) pack_turned_panel(k, b + i * panel * ldb, ldb, out + i * out_stride);
  } else {
    pack_whole_panels(k, whole, b, ldb, out, out_stride);
  }
  if (cols == 0) return;
  out += whole * out_stride;
  std::fill_n(out, k * panel, T(0));
  if (transposed) {
    kernels::transpose(b + whole * panel * ldb, ldb, out, panel, k, cols);
  } else {
    for (std::int64_t p = 0; p < k; ++p) std::copy_n(b + p * ldb + whole * panel, cols, out + p * panel);
  }
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
