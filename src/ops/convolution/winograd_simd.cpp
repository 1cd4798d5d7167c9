#include "ops/convolution/winograd_simd.hpp"

#include <algorithm>

#include "kernels/thread_buffer.hpp"
#include "kernels/transpose_tile.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/convolution/winograd_simd.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "ops/convolution/winograd_tiles-inl.hpp"
#include "support/bfloat16-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace {

using namespace backpass::winograd;  // NOLINT
using D = WinogradVectors;

/// A row of tiles, turned so that neighbouring channels are neighbours in memory.
struct Strip {
  const Images& images;
  std::int64_t channel;
  std::int64_t valid;  ///< channels that there are of a vector's
  float* data;         ///< [row][column][lane]

  Strip(const Images& all, std::int64_t first_channel, float* memory)
      : images(all),
        channel(first_channel),
        valid(std::min(lane_count(), all.channels - first_channel)),
        data(memory) {}

  std::int64_t plane() const { return images.height * images.width; }
  std::int64_t at(std::int64_t image, std::int64_t row) const {
    return ((image * images.channels + channel) * images.height + row) * images.width;
  }
  /// Rows [begin, end) of an image.
  void read(const void* x, std::int64_t image, std::int64_t begin, std::int64_t end) const {
    const std::int64_t count = (end - begin) * images.width;
    if (valid < lane_count()) std::fill_n(data, count * lane_count(), 0.0F);
    if (!images.is_narrow) {
      const float* from = static_cast<const float*>(x) + at(image, begin);
      return kernels::transpose(from, plane(), data, lane_count(), count, valid);
    }
    const std::uint16_t* from = static_cast<const std::uint16_t*>(x) + at(image, begin);
    float* wide = thread_buffer<float, kWideStrip>(valid * count);
    for (std::int64_t lane = 0; lane < valid; ++lane) {
      widen_bfloat16(from + lane * plane(), wide + lane * count, count);
    }
    kernels::transpose(wide, count, data, lane_count(), count, valid);
  }
  /// `rows` rows of an image from `top` on, of which the strip holds `stride` columns each.
  void write(void* y, std::int64_t image, std::int64_t top, std::int64_t rows, std::int64_t stride) const {
    const std::int64_t count = rows * images.width;
    if (!images.is_narrow) return turn(static_cast<float*>(y) + at(image, top), plane(), rows, stride);
    std::uint16_t* to = static_cast<std::uint16_t*>(y) + at(image, top);
    float* wide = thread_buffer<float, kWideStrip>(valid * count);
    turn(wide, count, rows, stride);
    for (std::int64_t lane = 0; lane < valid; ++lane) {
      narrow_bfloat16(wide + lane * count, to + lane * plane(), count);
    }
  }
  /// Back to rows of pixels: each channel `channel_step` from the one before.
  void turn(float* to, std::int64_t channel_step, std::int64_t rows, std::int64_t stride) const {
    const std::int64_t lanes = lane_count();
    if (stride == images.width) return kernels::transpose(data, lanes, to, channel_step, valid, rows * stride);
    for (std::int64_t i = 0; i < rows; ++i) {
      kernels::transpose(data + i * stride * lanes, lanes, to + i * images.width, channel_step, valid, images.width);
    }
  }
};

/// Tiles of whole rows of them: squares of kEdge, kOut apart, transformed along both axes.
template <int kOut, int kEdge, int kTile, class F>
void transform_rows(const Images& im, const void* x, std::int64_t first, std::int64_t last, std::int64_t channel,
                    const Tiles& to, const F& along) {
  const Strip strip(im, channel, thread_buffer<float, kStrip>(kEdge * im.width * lane_count()));
  float* tile = to.data + channel;
  for (std::int64_t r = first; r < last; ++r) {
    const std::int64_t image = r / im.tile_rows;
    const std::int64_t top = r % im.tile_rows * kOut - im.pad_top;
    const std::int64_t begin = std::clamp<std::int64_t>(top, 0, im.height);
    const std::int64_t end = std::clamp<std::int64_t>(top + kEdge, 0, im.height);
    strip.read(x, image, begin, end);
    const Pixels pixels{strip.data, begin, end, im.width};
    for (std::int64_t c = 0; c < im.tile_columns; ++c, tile += to.row) {
      V square[kEdge * kEdge], result[kTile * kTile];  // NOLINT
      load_square<kEdge>(pixels, top, c * kOut - im.pad_left, square);
      both_axes<kEdge, kTile>(along, square, result);
#pragma GCC unroll 36
      for (int k = 0; k < kTile * kTile; ++k) hn::StoreU(result[k], D(), tile + k * to.plane);
    }
  }
}

template <class Kind>
void write_rows(const Images& im, const Tiles& from, std::int64_t first, std::int64_t last, std::int64_t channel,
                const float* bias, void* y) {
  constexpr int kOut = Kind::kOut, kTile = Kind::kTile;
  const std::int64_t lanes = lane_count();
  const std::int64_t width = im.tile_columns * kOut;  // of the strip: whole tiles
  const Strip strip(im, channel, thread_buffer<float, kStrip>(kOut * width * lanes));
  const float* tile = from.data + channel;
  HWY_ALIGN float offsets[hn::MaxLanes(D())] = {};
  if (bias != nullptr) std::copy_n(bias + channel, strip.valid, offsets);
  const V offset = hn::Load(D(), offsets);
  for (std::int64_t r = first; r < last; ++r) {
    const std::int64_t top = r % im.tile_rows * kOut;
    const std::int64_t rows = std::min<std::int64_t>(kOut, im.height - top);
    for (std::int64_t c = 0; c < im.tile_columns; ++c, tile += from.row) {
      V square[kTile * kTile], result[kOut * kOut];  // NOLINT
#pragma GCC unroll 36
      for (int k = 0; k < kTile * kTile; ++k) square[k] = hn::LoadU(D(), tile + k * from.plane);
      both_axes<kTile, kOut>([](const V* m, V* out) HWY_ATTR { Kind::to_results(m, out); }, square, result);
#pragma GCC unroll 36
      for (int k = 0; k < kOut * kOut; ++k) {
        hn::Store(hn::Add(result[k], offset), D(), strip.data + (k / kOut * width + c * kOut + k % kOut) * lanes);
      }
    }
    strip.write(y, r / im.tile_rows, top, rows, width);
  }
}

template <class Kind>
void transform_panel(const Weights& ws, const float* w, std::int64_t panel, std::int64_t plane, float* to) {
  const std::int64_t lanes = lane_count();
  HWY_ALIGN float turned[9 * hn::MaxLanes(D())] = {};
  for (std::int64_t part = 0; part < 2; ++part) {
    const std::int64_t first = (panel * 2 + part) * lanes;
    const std::int64_t valid = std::clamp<std::int64_t>(ws.outputs - first, 0, lanes);
    std::fill_n(turned, 9 * lanes, 0.0F);
    for (std::int64_t input = 0; input < ws.inputs; ++input) {
      for (std::int64_t lane = 0; lane < valid; ++lane) {
        const float* from = w + (first + lane) * ws.output_step + input * ws.input_step;
#pragma GCC unroll 36
        for (int k = 0; k < 9; ++k) turned[k * lanes + lane] = from[k];
      }
      V square[9], result[Kind::kTile * Kind::kTile];  // NOLINT
#pragma GCC unroll 36
      for (int k = 0; k < 9; ++k) square[k] = hn::Load(D(), turned + (ws.is_flipped ? 8 - k : k) * lanes);
      both_axes<3, Kind::kTile>([](const V* in, V* out) HWY_ATTR { Kind::from_weights(in, out); }, square, result);
      float* at = to + (input * 2 + part) * lanes;
#pragma GCC unroll 36
      for (int k = 0; k < Kind::kTile * Kind::kTile; ++k) hn::StoreU(result[k], D(), at + k * plane);
    }
  }
}

template <class Kind>
void gather_weights(const Weights& ws, const Tiles& from, std::int64_t output, float* dw) {
  const std::int64_t lanes = lane_count();
  HWY_ALIGN float turned[9 * hn::MaxLanes(D())];
  for (std::int64_t first = 0; first < ws.inputs; first += lanes) {
    V square[Kind::kTile * Kind::kTile], result[9];  // NOLINT
    const float* at = from.data + output * from.row + first;
#pragma GCC unroll 36
    for (int k = 0; k < Kind::kTile * Kind::kTile; ++k) square[k] = hn::LoadU(D(), at + k * from.plane);
    both_axes<Kind::kTile, 3>([](const V* in, V* out) HWY_ATTR { Kind::to_weights(in, out); }, square, result);
#pragma GCC unroll 36
    for (int k = 0; k < 9; ++k) hn::Store(result[k], D(), turned + k * lanes);
    for (std::int64_t lane = 0; lane < std::min(lanes, ws.inputs - first); ++lane) {
      float* to = dw + output * ws.output_step + (first + lane) * ws.input_step;
#pragma GCC unroll 36
      for (int k = 0; k < 9; ++k) to[k] = turned[k * lanes + lane];
    }
  }
}

void tiles_of_images_simd(const Images& im, const void* x, std::int64_t first, std::int64_t last, std::int64_t channel,
                          const Tiles& to) {
  if (im.out == 2) {
    const auto along = [](const V* d, V* v) HWY_ATTR { TwoResults::from_image(d, v); };
    return transform_rows<2, 4, 4>(im, x, first, last, channel, to, along);
  }
  const auto along = [](const V* d, V* v) HWY_ATTR { FourResults::from_image(d, v); };
  transform_rows<4, 6, 6>(im, x, first, last, channel, to, along);
}

void tiles_of_results_simd(const Images& im, const void* dy, std::int64_t first, std::int64_t last,
                           std::int64_t channel, const Tiles& to) {
  if (im.out == 2) {
    const auto along = [](const V* y, V* m) HWY_ATTR { TwoResults::from_results(y, m); };
    return transform_rows<2, 2, 4>(im, dy, first, last, channel, to, along);
  }
  const auto along = [](const V* y, V* m) HWY_ATTR { FourResults::from_results(y, m); };
  transform_rows<4, 4, 6>(im, dy, first, last, channel, to, along);
}

void results_of_tiles_simd(const Images& im, const Tiles& from, std::int64_t first, std::int64_t last,
                           std::int64_t channel, const float* bias, void* y) {
  if (im.out == 2) return write_rows<TwoResults>(im, from, first, last, channel, bias, y);
  write_rows<FourResults>(im, from, first, last, channel, bias, y);
}

void panel_of_weights_simd(const Weights& ws, const float* w, std::int64_t out, std::int64_t panel, std::int64_t plane,
                           float* to) {
  if (out == 2) return transform_panel<TwoResults>(ws, w, panel, plane, to);
  transform_panel<FourResults>(ws, w, panel, plane, to);
}

void weights_of_tiles_simd(const Weights& ws, const Tiles& from, std::int64_t out, std::int64_t output, float* dw) {
  if (out == 2) return gather_weights<TwoResults>(ws, from, output, dw);
  gather_weights<FourResults>(ws, from, output, dw);
}

/// A product of a few rows by two vectors of columns: c[row] (+)= sum over steps of a[row, step] * b[step].
struct Product {
  const float* a;
  std::int64_t a_distance;  ///< of rows; of steps when rows are neighbours
  const float* b;
  std::int64_t b_step;
  float* c;
  std::int64_t c_row;
  std::int64_t steps;
  bool add = false;
};

/// How the left side of a product lies: rows after one another, or steps, each with all rows side by side.
enum class Lies : std::uint8_t { by_rows, by_steps };

constexpr int kMostRows = hn::MaxLanes(D()) >= 16 ? 12 : 6;  // two accumulators each, in 32 or 16 registers

template <int kRows, Lies kLies>
HWY_INLINE void multiply_rows(const Product& p) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  V left[kRows], right[kRows];  // NOLINT
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) left[r] = right[r] = hn::Zero(d);
  // Three rows share a pointer: addresses reach 0, 1 and 2 distances from it.
  const float* HWY_RESTRICT a[4] = {p.a, p.a + 3 * p.a_distance, p.a + 6 * p.a_distance, p.a + 9 * p.a_distance};
  const float* HWY_RESTRICT b = p.b;
  for (std::int64_t s = 0; s < p.steps; ++s, b += p.b_step) {
    const V first = hn::LoadU(d, b), second = hn::LoadU(d, b + lanes);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const V factor = hn::Set(d, kLies == Lies::by_rows ? a[r / 3][r % 3 * p.a_distance] : a[0][r]);
      left[r] = hn::MulAdd(factor, first, left[r]);
      right[r] = hn::MulAdd(factor, second, right[r]);
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) a[k] += kLies == Lies::by_rows ? 1 : p.a_distance;
  }
#pragma GCC unroll 12
  for (int r = 0; r < kRows; ++r) {
    float* c = p.c + r * p.c_row;
    if (p.add) {
      left[r] = hn::Add(left[r], hn::LoadU(d, c));
      right[r] = hn::Add(right[r], hn::LoadU(d, c + lanes));
    }
    hn::StoreU(left[r], d, c);
    hn::StoreU(right[r], d, c + lanes);
  }
}

template <Lies kLies, int kRows = kMostRows>
void multiply_few(std::int64_t rows, const Product& p) {
  if (rows == kRows) return multiply_rows<kRows, kLies>(p);
  if constexpr (kRows > 1) multiply_few<kLies, kRows - 1>(rows, p);
}

/// Any number of rows, in pieces of nearly equal size.
template <Lies kLies>
void multiply_all(std::int64_t rows, Product p) {
  std::int64_t pieces = (rows + kMostRows - 1) / kMostRows;
  for (; pieces > 0; --pieces) {
    const std::int64_t some = (rows + pieces - 1) / pieces;
    multiply_few<kLies>(some, p);
    p.a += kLies == Lies::by_rows ? some * p.a_distance : some;
    p.c += some * p.c_row;
    rows -= some;
  }
}

void multiply_panels_simd(std::int64_t tiles, std::int64_t inputs, std::int64_t outputs, const float* from,
                          std::int64_t from_row, const float* panels, float* to, std::int64_t to_row) {
  const std::int64_t width = 2 * lane_count();
  for (std::int64_t first = 0; first < outputs; first += width) {
    multiply_all<Lies::by_rows>(tiles, {from, from_row, panels + first * inputs, width, to + first, to_row, inputs});
  }
}

void multiply_tiles_simd(std::int64_t tiles, std::int64_t outputs, std::int64_t inputs, const float* dy,
                         std::int64_t dy_row, const float* x, std::int64_t x_row, float* to, std::int64_t to_row,
                         bool add) {
  const std::int64_t width = 2 * lane_count();
  for (std::int64_t first = 0; first < inputs; first += width) {
    multiply_all<Lies::by_steps>(outputs, {dy, dy_row, x + first, x_row, to + first, to_row, tiles, add});
  }
}

}  // namespace
}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

HWY_EXPORT(lane_count);
HWY_EXPORT(tiles_of_images_simd);
HWY_EXPORT(tiles_of_results_simd);
HWY_EXPORT(results_of_tiles_simd);
HWY_EXPORT(panel_of_weights_simd);
HWY_EXPORT(weights_of_tiles_simd);
HWY_EXPORT(multiply_panels_simd);
HWY_EXPORT(multiply_tiles_simd);

}  // namespace

namespace winograd {

std::int64_t lanes() { return HWY_DYNAMIC_DISPATCH(lane_count)(); }
std::int64_t panel_width() { return 2 * lanes(); }

void tiles_of_images(const Images& images, const void* x, std::int64_t first, std::int64_t last, std::int64_t channel,
                     const Tiles& to) {
  HWY_DYNAMIC_DISPATCH(tiles_of_images_simd)(images, x, first, last, channel, to);
}

void tiles_of_results(const Images& images, const void* dy, std::int64_t first, std::int64_t last, std::int64_t channel,
                      const Tiles& to) {
  HWY_DYNAMIC_DISPATCH(tiles_of_results_simd)(images, dy, first, last, channel, to);
}

void results_of_tiles(const Images& images, const Tiles& from, std::int64_t first, std::int64_t last,
                      std::int64_t channel, const float* bias, void* y) {
  HWY_DYNAMIC_DISPATCH(results_of_tiles_simd)(images, from, first, last, channel, bias, y);
}

void panel_of_weights(const Weights& weights, const float* w, std::int64_t out, std::int64_t panel, std::int64_t plane,
                      float* to) {
  HWY_DYNAMIC_DISPATCH(panel_of_weights_simd)(weights, w, out, panel, plane, to);
}

void weights_of_tiles(const Weights& weights, const Tiles& from, std::int64_t out, std::int64_t output, float* dw) {
  HWY_DYNAMIC_DISPATCH(weights_of_tiles_simd)(weights, from, out, output, dw);
}

void multiply_panels(std::int64_t tiles, std::int64_t inputs, std::int64_t outputs, const float* from,
                     std::int64_t from_row, const float* panels, float* to, std::int64_t to_row) {
  HWY_DYNAMIC_DISPATCH(multiply_panels_simd)(tiles, inputs, outputs, from, from_row, panels, to, to_row);
}

void multiply_tiles(std::int64_t tiles, std::int64_t outputs, std::int64_t inputs, const float* dy, std::int64_t dy_row,
                    const float* x, std::int64_t x_row, float* to, std::int64_t to_row, bool add) {
  HWY_DYNAMIC_DISPATCH(multiply_tiles_simd)(tiles, outputs, inputs, dy, dy_row, x, x_row, to, to_row, add);
}

}  // namespace winograd
}  // namespace backpass
#endif
