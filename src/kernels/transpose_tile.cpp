#include "kernels/transpose_tile.hpp"

#include <algorithm>

#include "kernels/simd_fixed.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/transpose_tile.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/transpose_blocks-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Where a rectangle is read and written; steps in elements.
template <class T>
struct Tile {
  const T* HWY_RESTRICT from;
  std::int64_t from_step;
  T* HWY_RESTRICT to;
  std::int64_t to_step;

  Tile at(std::int64_t i, std::int64_t j) const {
    return {from + i + j * from_step, from_step, to + i * to_step + j, to_step};
  }
};

template <class T>
void transpose_scalars(Tile<T> t, std::int64_t height, std::int64_t width) {
  for (std::int64_t i = 0; i < height; ++i) {
    for (std::int64_t j = 0; j < width; ++j) t.to[i * t.to_step + j] = t.from[i + j * t.from_step];
  }
}

#if HWY_TARGET == HWY_SCALAR
template <class T>
void transpose(Tile<T> t, std::int64_t height, std::int64_t width) {
  transpose_scalars(t, height, width);
}
#else

/// Elements of a block of 128 bits, within which shuffles are cheap.
template <class T>
constexpr std::int64_t kBlock = 16 / sizeof(T);

/// Vectors of one block, which outrun memory where elements are small: wider ones would only add shuffles.
template <class T>
using Narrow = hn::Full128<T>;
template <class T>
using Wide = hn::CappedTag<T, sizeof(T) < 4 ? kBlock<T> : 64 / sizeof(T)>;

/// Elements of a cache line: squares of that edge read whole lines and write whole lines, so that it does not matter
/// when rows a power of two apart push each other out of the cache.
template <class T>
constexpr std::int64_t kLine = 64 / sizeof(T);

/// Vectors of 1, 2 or 4 blocks, and as many of them: rows become columns, a block being an element.
template <int Blocks, class D, class V>
HWY_INLINE void transpose_blocks(D d, V* HWY_RESTRICT v) {
  if constexpr (Blocks == 2) {
    const V first = hn::ConcatLowerLower(d, v[1], v[0]);
    v[1] = hn::ConcatUpperUpper(d, v[1], v[0]);
    v[0] = first;
  } else if constexpr (Blocks == 4) {
    const V even0 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(v[1]), v[0]);
    const V odd0 = hn::OddEvenBlocks(v[1], hn::SwapAdjacentBlocks(v[0]));
    const V even1 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(v[3]), v[2]);
    const V odd1 = hn::OddEvenBlocks(v[3], hn::SwapAdjacentBlocks(v[2]));
    v[0] = hn::ConcatLowerLower(d, even1, even0);
    v[1] = hn::ConcatLowerLower(d, odd1, odd0);
    v[2] = hn::ConcatUpperUpper(d, even1, even0);
    v[3] = hn::ConcatUpperUpper(d, odd1, odd0);
  }
}

/// A square with the edge of a vector. Unrolled, or the vectors would be kept in memory.
template <class D, class T>
HWY_INLINE void transpose_vectors(D d, Tile<T> t) {
  constexpr std::int64_t n = kBlock<T>;
  constexpr std::int64_t blocks = hn::MaxLanes(D()) / n;
  hn::Vec<D> rows[blocks][n];  // NOLINT
#pragma GCC unroll 4
  for (std::int64_t g = 0; g < blocks; ++g) {
#pragma GCC unroll 16
    for (std::int64_t i = 0; i < n; ++i) rows[g][i] = hn::LoadU(d, t.from + (g * n + i) * t.from_step);
    backpass::HWY_NAMESPACE::transpose_in_blocks(d, rows[g]);
  }
#pragma GCC unroll 16
  for (std::int64_t i = 0; i < n; ++i) {
    hn::Vec<D> column[blocks];  // NOLINT
#pragma GCC unroll 4
    for (std::int64_t g = 0; g < blocks; ++g) column[g] = rows[g][i];
    transpose_blocks<blocks>(d, column);
#pragma GCC unroll 4
    for (std::int64_t g = 0; g < blocks; ++g) hn::StoreU(column[g], d, t.to + (g * n + i) * t.to_step);
  }
}

/// A square with the edge of a cache line; where that is longer than a vector, by way of a block that stays in the
/// cache.
template <class T>
void transpose_lines(Tile<T> t) {
  const Wide<T> d;
  constexpr std::int64_t edge = kLine<T>;
  constexpr std::int64_t lanes = hn::MaxLanes(Wide<T>());
  if constexpr (edge == lanes) {
    transpose_vectors(d, t);
  } else {
    alignas(64) T block[edge * edge];  // NOLINT: overwritten before it is read
    Tile<T> local{t.from, t.from_step, block, edge};
    for (std::int64_t j = 0; j < edge; j += lanes) {
      for (std::int64_t i = 0; i < edge; i += lanes) transpose_vectors(d, local.at(i, j));
    }
    for (std::int64_t i = 0; i < edge; ++i) std::copy_n(block + i * edge, edge, t.to + i * t.to_step);
  }
}

/// What is left at the edges: squares of blocks, then single elements.
template <class T>
void transpose_edge(Tile<T> t, std::int64_t height, std::int64_t width) {
  std::int64_t tall = height / kBlock<T> * kBlock<T>;
  std::int64_t wide = width / kBlock<T> * kBlock<T>;
  for (std::int64_t j = 0; j < wide; j += kBlock<T>) {
    for (std::int64_t i = 0; i < tall; i += kBlock<T>) transpose_vectors(Narrow<T>(), t.at(i, j));
  }
  transpose_scalars(t.at(0, wide), tall, width - wide);
  transpose_scalars(t.at(tall, 0), height - tall, width);
}

template <class T>
void transpose(Tile<T> t, std::int64_t height, std::int64_t width) {
  std::int64_t tall = height / kLine<T> * kLine<T>;
  std::int64_t wide = width / kLine<T> * kLine<T>;
  for (std::int64_t j = 0; j < wide; j += kLine<T>) {
    for (std::int64_t i = 0; i < tall; i += kLine<T>) transpose_lines(t.at(i, j));
  }
  transpose_edge(t.at(0, wide), tall, width - wide);
  transpose_edge(t.at(tall, 0), height - tall, width);
}
#endif

void transpose_8(const std::uint8_t* from, std::int64_t from_step, std::uint8_t* to, std::int64_t to_step,
                 std::int64_t height, std::int64_t width) {
  transpose(Tile<std::uint8_t>{from, from_step, to, to_step}, height, width);
}
void transpose_16(const std::uint16_t* from, std::int64_t from_step, std::uint16_t* to, std::int64_t to_step,
                  std::int64_t height, std::int64_t width) {
  transpose(Tile<std::uint16_t>{from, from_step, to, to_step}, height, width);
}
void transpose_32(const std::uint32_t* from, std::int64_t from_step, std::uint32_t* to, std::int64_t to_step,
                  std::int64_t height, std::int64_t width) {
  transpose(Tile<std::uint32_t>{from, from_step, to, to_step}, height, width);
}
void transpose_64(const std::uint64_t* from, std::int64_t from_step, std::uint64_t* to, std::int64_t to_step,
                  std::int64_t height, std::int64_t width) {
  transpose(Tile<std::uint64_t>{from, from_step, to, to_step}, height, width);
}

}  // namespace backpass::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass::kernels {

HWY_EXPORT(transpose_8);
HWY_EXPORT(transpose_16);
HWY_EXPORT(transpose_32);
HWY_EXPORT(transpose_64);

void transpose_tile(const std::uint8_t* from, std::int64_t from_step, std::uint8_t* to, std::int64_t to_step,
                    std::int64_t height, std::int64_t width) {
  HWY_DYNAMIC_DISPATCH(transpose_8)(from, from_step, to, to_step, height, width);
}
void transpose_tile(const std::uint16_t* from, std::int64_t from_step, std::uint16_t* to, std::int64_t to_step,
                    std::int64_t height, std::int64_t width) {
  HWY_DYNAMIC_DISPATCH(transpose_16)(from, from_step, to, to_step, height, width);
}
void transpose_tile(const std::uint32_t* from, std::int64_t from_step, std::uint32_t* to, std::int64_t to_step,
                    std::int64_t height, std::int64_t width) {
  HWY_DYNAMIC_DISPATCH(transpose_32)(from, from_step, to, to_step, height, width);
}
void transpose_tile(const std::uint64_t* from, std::int64_t from_step, std::uint64_t* to, std::int64_t to_step,
                    std::int64_t height, std::int64_t width) {
  HWY_DYNAMIC_DISPATCH(transpose_64)(from, from_step, to, to_step, height, width);
}

}  // namespace backpass::kernels
#endif  // HWY_ONCE
