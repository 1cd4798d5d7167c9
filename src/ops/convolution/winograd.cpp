#include "ops/convolution/winograd.hpp"

#include <algorithm>
#include <atomic>

#include "ops/convolution/winograd_parts.hpp"

namespace backpass {
namespace {

using namespace winograd;  // NOLINT: its parts

/// Bytes of transformed tiles for the gradient of weights, whose sums are read and written for each block.
constexpr std::int64_t kSumBlockBytes = 4096 * 1024;

/// Tiles that are added up by themselves: sums of sums lose less than one long sum.
constexpr std::int64_t kMostTerms = 64;

/// What a convolution takes with `out` x `out` results per tile, in multiplications of each pair of channels. Measured:
/// a channel of a tile is transformed in the time of 19 of its products, weights are in that of 30 tiles.
double cost(const ConvGeometry& g, std::int64_t out) {
  const std::int64_t tiles = g.batch * ((g.out[0] + out - 1) / out) * ((g.out[1] + out - 1) / out);
  const double transforms = 19.0 / static_cast<double>(g.in_channels) + 19.0 / static_cast<double>(g.out_channels);
  return static_cast<double>((out + 2) * (out + 2)) * (static_cast<double>(tiles) * (1 + transforms) + 30);
}

}  // namespace

bool has_winograd_windows(const ConvGeometry& g) {
  const auto are = [](const Dims& dims, std::int64_t value) {
    return dims.size() == 2 && dims[0] == value && dims[1] == value;
  };
  if (g.groups != 1 || !are(g.kernel, 3) || !are(g.stride, 1) || !are(g.dilation, 1)) return false;
  const auto fits = [](std::int64_t pad) { return pad >= 0 && pad <= 2; };
  return std::all_of(g.pad_begin.begin(), g.pad_begin.end(), fits) &&
         std::all_of(g.pad_end.begin(), g.pad_end.end(), fits) && g.batch != 0 && g.in_size() != 0;
}

std::optional<std::int64_t> winograd_results(const ConvGeometry& g) {
  if (!has_winograd_windows(g)) return std::nullopt;
  const std::int64_t best = cost(g, 4) <= cost(g, 2) ? 4 : 2;
  return cost(g, best) < 0.8 * static_cast<double>(9 * g.batch * g.out_size()) ? std::optional(best) : std::nullopt;
}

WinogradConv::WinogradConv(const ConvGeometry& g, Kind kind, std::int64_t results, bool is_narrow) {
  const bool is_forward = kind == Kind::forward;
  const std::int64_t c = g.in_channels, k = g.out_channels;
  if (is_forward) {
    in_ = images_of(c, g.in, g.out, g.pad_begin, results);
    out_ = images_of(k, g.out, g.out, {0, 0}, results);
    weights_ = {.outputs = k, .inputs = c, .output_step = 9 * c, .input_step = 9};
  } else {
    in_ = images_of(k, g.out, g.in, {2 - g.pad_begin[0], 2 - g.pad_begin[1]}, results);
    out_ = images_of(c, g.in, g.in, {0, 0}, results);
    weights_ = {.outputs = c, .inputs = k, .output_step = 9, .input_step = 9 * c, .is_flipped = true};
  }
  in_.is_narrow = out_.is_narrow = is_narrow;
  const std::int64_t columns = in_.tile_columns;
  in_row_ = row_of(weights_.inputs);
  out_row_ = row_of(weights_.outputs);
  rows_ = g.batch * in_.tile_rows;
  block_rows_ = rows_of_block(rows_, columns * in_.positions() * (in_row_ + out_row_) * 4, kBlockBytes);
  blocks_ = (rows_ + block_rows_ - 1) / block_rows_;
  slots_ = std::min<std::int64_t>(blocks_, threads_here());
  in_plane_ = block_rows_ * columns * in_row_ + winograd::lanes();
  out_plane_ = block_rows_ * columns * out_row_ + winograd::lanes();
  panels_ = rounded(weights_.outputs, winograd::panel_width()) / winograd::panel_width();
  panel_plane_ = panels_ * winograd::panel_width() * weights_.inputs + winograd::lanes();
}

std::size_t WinogradConv::scratch_bytes() const {
  const std::int64_t block = in_.positions() * (in_plane_ + out_plane_);
  return static_cast<std::size_t>(in_.positions() * panel_plane_ + slots_ * block) * sizeof(float);
}

void WinogradConv::run(const void* x, const float* w, const float* bias, void* y, std::byte* scratch) const {
  auto* panels = reinterpret_cast<float*>(scratch);
  const std::int64_t panel = winograd::panel_width() * weights_.inputs;
  for_each(panels_, [&](std::int64_t i) {
    winograd::panel_of_weights(weights_, w, in_.out, i, panel_plane_, panels + i * panel);
  });
  float* memory = panels + in_.positions() * panel_plane_;
  std::atomic<std::int64_t> next = 0;
  for_each(slots_, [&](std::int64_t slot) {
    float* own = memory + slot * in_.positions() * (in_plane_ + out_plane_);
    for (std::int64_t block = next++; block < blocks_; block = next++) run_block(block, x, bias, panels, own, y);
  });
}

void WinogradConv::run_block(std::int64_t block, const void* x, const float* bias, const float* panels, float* memory,
                             void* y) const {
  const std::int64_t first = block * block_rows_, last = std::min(rows_, first + block_rows_);
  const std::int64_t tiles = (last - first) * in_.tile_columns;
  const Tiles from{memory, in_plane_, in_row_};
  const Tiles to{memory + in_.positions() * in_plane_, out_plane_, out_row_};
  for_channels(weights_.inputs, [&](std::int64_t c) { winograd::tiles_of_images(in_, x, first, last, c, from); });
  for_each(in_.positions(), [&](std::int64_t k) {
    winograd::multiply_panels(tiles, weights_.inputs, weights_.outputs, from.data + k * from.plane, from.row,
                              panels + k * panel_plane_, to.data + k * to.plane, to.row);
  });
  for_channels(weights_.outputs,
               [&](std::int64_t c) { winograd::results_of_tiles(out_, to, first, last, c, bias, y); });
}

WinogradWeights::WinogradWeights(const ConvGeometry& g, std::int64_t results, bool is_narrow)
    : in_(images_of(g.in_channels, g.in, g.out, g.pad_begin, results)),
      out_(images_of(g.out_channels, g.out, g.out, {0, 0}, results)),
      weights_{.outputs = g.out_channels, .inputs = g.in_channels, .output_step = 9 * g.in_channels, .input_step = 9} {
  in_.is_narrow = out_.is_narrow = is_narrow;
  in_row_ = row_of(g.in_channels);
  out_row_ = row_of(g.out_channels);
  rows_ = g.batch * in_.tile_rows;
  block_rows_ = rows_of_block(rows_, in_.tile_columns * in_.positions() * (in_row_ + out_row_) * 4, kSumBlockBytes);
  in_plane_ = block_rows_ * in_.tile_columns * in_row_ + winograd::lanes();
  out_plane_ = block_rows_ * in_.tile_columns * out_row_ + winograd::lanes();
  sum_plane_ = weights_.outputs * in_row_ + winograd::lanes();
}

std::size_t WinogradWeights::scratch_bytes() const {
  return static_cast<std::size_t>(in_.positions() * (in_plane_ + out_plane_ + sum_plane_)) * sizeof(float);
}

void WinogradWeights::transform_block(std::int64_t first, std::int64_t last, const void* x, const void* dy,
                                      const Tiles& to_x, const Tiles& to_dy) const {
  for_channels(in_.channels, [&](std::int64_t c) { winograd::tiles_of_images(in_, x, first, last, c, to_x); });
  for_channels(out_.channels, [&](std::int64_t c) { winograd::tiles_of_results(out_, dy, first, last, c, to_dy); });
}

void WinogradWeights::add_products(std::int64_t tiles, const float* x, const float* dy, float* sums, bool add) const {
  for (std::int64_t first = 0; first < tiles; first += kMostTerms) {
    winograd::multiply_tiles(std::min(kMostTerms, tiles - first), weights_.outputs, weights_.inputs,
                             dy + first * out_row_, out_row_, x + first * in_row_, in_row_, sums, in_row_,
                             add || first > 0);
  }
}

void WinogradWeights::run(const void* x, const void* dy, float* dw, std::byte* scratch) const {
  auto* memory = reinterpret_cast<float*>(scratch);
  const Tiles tiles_x{memory, in_plane_, in_row_};
  const Tiles tiles_dy{memory + in_.positions() * in_plane_, out_plane_, out_row_};
  const Tiles sums{tiles_dy.data + in_.positions() * out_plane_, sum_plane_, in_row_};
  for (std::int64_t first = 0; first < rows_; first += block_rows_) {
    const std::int64_t last = std::min(rows_, first + block_rows_);
    transform_block(first, last, x, dy, tiles_x, tiles_dy);
    for_each(in_.positions(), [&](std::int64_t k) {
      add_products((last - first) * in_.tile_columns, tiles_x.data + k * tiles_x.plane,
                   tiles_dy.data + k * tiles_dy.plane, sums.data + k * sums.plane, first > 0);
    });
  }
  for_each(weights_.outputs, [&](std::int64_t k) { winograd::weights_of_tiles(weights_, sums, in_.out, k, dw); });
}

}  // namespace backpass
