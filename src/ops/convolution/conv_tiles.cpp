#include "ops/convolution/conv_tiles.hpp"

#include <algorithm>
#include <utility>

#include "kernels/simd_fixed.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/convolution/conv_tiles.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Elements that stand for input outside of the image; as long as the longest run.
HWY_ALIGN constexpr float kZeros[64] = {};

template <int Rows, int Vectors>
HWY_INLINE void start_tile(const ConvTiles& t, std::int64_t q, V (&sum)[Rows][Vectors]) {
  const D d;
  const bool adds = !t.first || t.residual[0] != nullptr;
#pragma GCC unroll 3
  for (int j = 0; j < Vectors; ++j) {
    const V bias = t.first && t.bias != nullptr ? hn::LoadU(d, t.bias + j * hn::Lanes(d)) : hn::Zero(d);
#pragma GCC unroll 12
    for (int i = 0; i < Rows; ++i) sum[i][j] = bias;
  }
  if (HWY_LIKELY(!adds)) return;
#pragma GCC unroll 3
  for (int j = 0; j < Vectors; ++j) {
    const float* from = (t.first ? t.residual[j] : t.y[j]) + q * t.pixel_stride;
#pragma GCC unroll 12
    for (int i = 0; i < Rows; ++i) sum[i][j] = hn::Add(sum[i][j], hn::LoadU(d, from + i * t.pixel_stride));
  }
}

template <int Rows, int Vectors>
HWY_INLINE void finish_tile(const ConvTiles& t, std::int64_t q, const V (&sum)[Rows][Vectors]) {
  const D d;
  const V low = hn::Set(d, t.low);
  const V high = hn::Set(d, t.high);
  const std::int64_t stride = t.pixel_stride;
#pragma GCC unroll 3
  for (int j = 0; j < Vectors; ++j) {
    float* to = t.y[j] + q * stride;
#pragma GCC unroll 12
    for (int i = 0; i < Rows; ++i) hn::StoreU(hn::Min(high, hn::Max(low, sum[i][j])), d, to + i * stride);
  }
}

/// sum += x[i] * w for one input element of each row; w advances.
template <int Rows, int Vectors>
HWY_INLINE void accumulate(const float* const (&x)[Rows], std::int64_t at, const float*& w, V (&sum)[Rows][Vectors]) {
  const D d;
  V weights[Vectors];
#pragma GCC unroll 3
  for (int j = 0; j < Vectors; ++j) weights[j] = hn::Load(d, w + j * hn::Lanes(d));
  w += Vectors * hn::Lanes(d);
#pragma GCC unroll 12
  for (int i = 0; i < Rows; ++i) {
    const V v = hn::Set(d, x[i][at]);
#pragma GCC unroll 3
    for (int j = 0; j < Vectors; ++j) sum[i][j] = hn::MulAdd(v, weights[j], sum[i][j]);
  }
}

template <int Rows, int Vectors>
HWY_INLINE void accumulate_run(const float* const (&x)[Rows], std::int64_t at, std::int64_t run, const float*& w,
                               V (&sum)[Rows][Vectors]) {
  std::int64_t k = 0;
  for (; k + 2 <= run; k += 2) {  // longer stretches make the compiler move registers about
    accumulate<Rows, Vectors>(x, at + k, w, sum);
    accumulate<Rows, Vectors>(x, at + k + 1, w, sum);
  }
  for (; k < run; ++k) accumulate<Rows, Vectors>(x, at + k, w, sum);
}

constexpr std::int64_t kLine = 16;  // floats

/// What a tile fetches for those that come later: some lines before each run. All at once they would wait for each
/// other.
struct Fetch {
  const float* at;
  std::int64_t lines;

  HWY_INLINE void next() {
    for (std::int64_t i = 0; i < lines; ++i, at += kLine) __builtin_prefetch(at);
  }
};

/// A tile all of whose inputs lie inside the image.
template <int Rows, int Vectors>
HWY_NOINLINE void inner_tile(const ConvTiles& t, std::int64_t q, Fetch fetch) {
  V sum[Rows][Vectors];
  start_tile<Rows, Vectors>(t, q, sum);
  const float* x[Rows];
#pragma GCC unroll 12
  for (int i = 0; i < Rows; ++i) x[i] = t.x + (t.pixel != nullptr ? t.pixel[q + i] : (q + i) * t.pixel_step);
  const float* w = t.weights;
  for (std::int64_t k = 0; k < t.positions; ++k) {
    std::int64_t at = t.position_offset[k];
    for (std::int64_t c = 1; c < t.blocks; ++c, at += t.block_stride) {
      fetch.next();
      accumulate_run<Rows, Vectors>(x, at, t.run, w, sum);
    }
    fetch.next();
    accumulate_run<Rows, Vectors>(x, at, t.last_run, w, sum);
  }
  finish_tile<Rows, Vectors>(t, q, sum);
}

/// A tile that meets the border: inputs outside are read from zeros, over and over.
template <int Rows, int Vectors>
HWY_NOINLINE void border_tile(const ConvTiles& t, std::int64_t q, Fetch fetch) {
  V sum[Rows][Vectors];
  start_tile<Rows, Vectors>(t, q, sum);
  const float* w = t.weights;
  for (std::int64_t k = 0; k < t.positions; ++k) {
    const float* x[Rows];
    std::int64_t step[Rows];
#pragma GCC unroll 12
    for (int i = 0; i < Rows; ++i) {
      const bool in = ((t.inside[q + i] >> k) & 1U) != 0;
      x[i] = in ? t.x + t.pixel[q + i] + t.position_offset[k] : kZeros;
      step[i] = in ? t.block_stride : 0;
    }
    for (std::int64_t c = 0; c < t.blocks; ++c) {
      fetch.next();
      accumulate_run<Rows, Vectors>(x, 0, c + 1 == t.blocks ? t.last_run : t.run, w, sum);
#pragma GCC unroll 12
      for (int i = 0; i < Rows; ++i) x[i] += step[i];
    }
  }
  finish_tile<Rows, Vectors>(t, q, sum);
}

using TileFunction = void (*)(const ConvTiles&, std::int64_t, Fetch);

template <int Vectors, int... Rows>
HWY_INLINE TileFunction inner_of(std::int64_t rows, std::integer_sequence<int, Rows...>) {
  constexpr TileFunction kTable[] = {inner_tile<Rows + 1, Vectors>...};
  return kTable[rows - 1];
}

template <int Vectors, int... Rows>
HWY_INLINE TileFunction border_of(std::int64_t rows, std::integer_sequence<int, Rows...>) {
  constexpr TileFunction kTable[] = {border_tile<Rows + 1, Vectors>...};
  return kTable[rows - 1];
}

bool meets_border(const ConvTiles& t, std::int64_t q, std::int64_t rows) {
  if (t.inside == nullptr) return false;
  std::uint64_t all = t.all_inside;
  for (std::int64_t i = 0; i < rows; ++i) all &= t.inside[q + i];
  return all != t.all_inside;
}

template <int Vectors>
void run_tiles(const ConvTiles& t, std::int64_t begin, std::int64_t end) {
  // Twelve sums at most: more registers there are not. Nine keep the arithmetic busy, too.
  constexpr int kRows = Vectors == 3 ? 3 : 12 / Vectors;
  using Sizes = std::make_integer_sequence<int, kRows>;
  const std::int64_t count = (end - begin + kRows - 1) / kRows;
  if (count == 0) return;
  // Pixels are dealt out evenly, and so is what to fetch.
  const std::int64_t rows = (end - begin) / count;
  const std::int64_t longer = (end - begin) % count;
  const std::int64_t runs = t.positions * t.blocks;
  Fetch fetch{t.next, (t.next_lines + count * runs - 1) / (count * runs)};
  const float* fetch_end = t.next + t.next_lines * kLine;
  std::int64_t q = begin;
  for (std::int64_t tile = 0; tile < count; ++tile) {
    const std::int64_t size = rows + (tile < longer ? 1 : 0);
    const bool border = meets_border(t, q, size);
    (border ? border_of<Vectors>(size, Sizes()) : inner_of<Vectors>(size, Sizes()))(t, q, fetch);
    fetch.at += runs * fetch.lines * kLine;
    if (fetch.at >= fetch_end) fetch.lines = 0;
    q += size;
  }
}

void tiles(const ConvTiles& t, std::int64_t begin, std::int64_t end) {
  switch (t.vectors) {
    case 1:
      return run_tiles<1>(t, begin, end);
    case 2:
      return run_tiles<2>(t, begin, end);
    default:
      return run_tiles<3>(t, begin, end);
  }
}

ConvTileKernels kernels() { return {static_cast<std::int64_t>(hn::Lanes(D())), tiles}; }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {

HWY_EXPORT(kernels);

const ConvTileKernels& conv_tile_kernels() {
  static const ConvTileKernels chosen = HWY_DYNAMIC_DISPATCH(kernels)();
  return chosen;
}

}  // namespace backpass
#endif
