// Winograd's transforms of blocked images: vectors are what memory holds, nothing is turned.
#include <algorithm>

#include "ops/convolution/winograd_simd.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/convolution/winograd_blocked.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "ops/convolution/winograd_tiles-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace {

using namespace backpass::winograd;  // NOLINT
using D = WinogradVectors;

/// The plane of a vector of channels in one image.
std::int64_t plane_at(const Images& im, std::int64_t image, std::int64_t channel) {
  return (image * im.channels + channel) * im.height * im.width;
}

template <class Kind>
void transform_rows(const Images& im, const float* x, std::int64_t first, std::int64_t last, std::int64_t channel,
                    const Tiles& to) {
  constexpr int kOut = Kind::kOut, kTile = Kind::kTile;
  float* tile = to.data + channel;
  for (std::int64_t r = first; r < last; ++r) {
    const Pixels pixels{x + plane_at(im, r / im.tile_rows, channel), 0, im.height, im.width};
    const std::int64_t top = r % im.tile_rows * kOut - im.pad_top;
    for (std::int64_t c = 0; c < im.tile_columns; ++c, tile += to.row) {
      V square[kTile * kTile], result[kTile * kTile];  // NOLINT
      load_square<kTile>(pixels, top, c * kOut - im.pad_left, square);
      both_axes<kTile, kTile>([](const V* d, V* v) HWY_ATTR { Kind::from_image(d, v); }, square, result);
#pragma GCC unroll 36
      for (int k = 0; k < kTile * kTile; ++k) hn::StoreU(result[k], D(), tile + k * to.plane);
    }
  }
}

/// The results of a tile that lie inside the image.
template <int kOut>
HWY_INLINE void store_square(const BlockedEnd& end, std::int64_t at, std::int64_t width, std::int64_t rows,
                             std::int64_t columns, const V* square) {
  const D d;
  const std::int64_t lanes = lane_count();
  const V low = hn::Set(d, end.low), high = hn::Set(d, end.high);
#pragma GCC unroll 4
  for (int i = 0; i < kOut; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kOut; ++j) {
      if (i >= rows || j >= columns) continue;
      const std::int64_t place = at + (i * width + j) * lanes;
      V v = square[i * kOut + j];
      if (end.residual != nullptr) v = hn::Add(v, hn::LoadU(d, end.residual + place));
      hn::StoreU(hn::Min(high, hn::Max(low, v)), d, end.y + place);
    }
  }
}

template <class Kind>
void write_rows(const Images& im, const Tiles& from, std::int64_t first, std::int64_t last, std::int64_t channel,
                const BlockedEnd& end) {
  constexpr int kOut = Kind::kOut, kTile = Kind::kTile;
  const V bias = end.bias != nullptr ? hn::LoadU(D(), end.bias + channel) : hn::Zero(D());
  const float* tile = from.data + channel;
  for (std::int64_t r = first; r < last; ++r) {
    const std::int64_t plane = plane_at(im, r / im.tile_rows, channel);
    const std::int64_t top = r % im.tile_rows * kOut;
    for (std::int64_t c = 0; c < im.tile_columns; ++c, tile += from.row) {
      V square[kTile * kTile], result[kOut * kOut];  // NOLINT
#pragma GCC unroll 36
      for (int k = 0; k < kTile * kTile; ++k) square[k] = hn::LoadU(D(), tile + k * from.plane);
      both_axes<kTile, kOut>([](const V* m, V* out) HWY_ATTR { Kind::to_results(m, out); }, square, result);
#pragma GCC unroll 16
      for (int k = 0; k < kOut * kOut; ++k) result[k] = hn::Add(result[k], bias);
      const std::int64_t at = plane + (top * im.width + c * kOut) * lane_count();
      store_square<kOut>(end, at, im.width, im.height - top, im.width - c * kOut, result);
    }
  }
}

void tiles_of_blocked_simd(const Images& im, const float* x, std::int64_t first, std::int64_t last,
                           std::int64_t channel, const Tiles& to) {
  if (im.out == 2) return transform_rows<TwoResults>(im, x, first, last, channel, to);
  transform_rows<FourResults>(im, x, first, last, channel, to);
}

void blocked_of_tiles_simd(const Images& im, const Tiles& from, std::int64_t first, std::int64_t last,
                           std::int64_t channel, const BlockedEnd& end) {
  if (im.out == 2) return write_rows<TwoResults>(im, from, first, last, channel, end);
  write_rows<FourResults>(im, from, first, last, channel, end);
}

}  // namespace
}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

HWY_EXPORT(tiles_of_blocked_simd);
HWY_EXPORT(blocked_of_tiles_simd);

}  // namespace

namespace winograd {

void tiles_of_blocked(const Images& images, const float* x, std::int64_t first, std::int64_t last, std::int64_t channel,
                      const Tiles& to) {
  HWY_DYNAMIC_DISPATCH(tiles_of_blocked_simd)(images, x, first, last, channel, to);
}

void blocked_of_tiles(const Images& images, const Tiles& from, std::int64_t first, std::int64_t last,
                      std::int64_t channel, const BlockedEnd& end) {
  HWY_DYNAMIC_DISPATCH(blocked_of_tiles_simd)(images, from, first, last, channel, end);
}

}  // namespace winograd
}  // namespace backpass
#endif
