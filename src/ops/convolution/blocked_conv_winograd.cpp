#include <algorithm>
#include <atomic>

#include "ops/convolution/blocked_conv_parts.hpp"
#include "ops/convolution/winograd.hpp"
#include "ops/convolution/winograd_parts.hpp"

namespace backpass {
namespace {

using namespace winograd;  // NOLINT: its parts

/// As many blocks of tiles are dealt out to threads whole. Of fewer, threads share each.
constexpr std::int64_t kManyBlocks = 8;

/// [position][panel of outputs][input][output]
Tensor transformed_weights(const Weights& shape, std::int64_t out, std::int64_t plane, const float* w) {
  const std::int64_t positions = (out + 2) * (out + 2);
  Tensor result(DType::float32, {positions * plane});
  for_each(rounded(shape.outputs, panel_width()) / panel_width(), [&](std::int64_t i) {
    panel_of_weights(shape, w, out, i, plane, result.as<float>() + i * panel_width() * shape.inputs);
  });
  return result;
}

class Winograd : public BlockedConv {
 public:
  Winograd(const ConvGeometry& g, const BlockedConvOptions& o, const Tensor& weights, std::int64_t results)
      : inputs_(g.in_channels),
        in_(images_of(rounded(g.in_channels, lanes()), g.in, g.out, g.pad_begin, results)),
        out_(images_of(g.out_channels, g.out, g.out, {0, 0}, results)),
        end_(o.activation),
        in_row_(row_of(g.in_channels)),
        out_row_(row_of(g.out_channels)),
        rows_(g.batch * in_.tile_rows) {
    const std::int64_t c = g.in_channels, k = g.out_channels;
    panel_plane_ = rounded(k, panel_width()) * c + lanes();
    weights_ = shared_pack(weights, 1, -results, [&] {
      const Weights shape{.outputs = k, .inputs = c, .output_step = 9 * c, .input_step = 9};
      return transformed_weights(shape, results, panel_plane_, weights.as<float>());
    });
    const std::int64_t row_bytes = in_.tile_columns * in_.positions() * (in_row_ + out_row_) * 4;
    block_rows_ = rows_of_block(rows_, row_bytes, kBlockBytes);
    blocks_ = (rows_ + block_rows_ - 1) / block_rows_;
    slots_ = blocks_ < kManyBlocks ? 1 : std::min<std::int64_t>(blocks_, threads_here());
    in_plane_ = block_rows_ * in_.tile_columns * in_row_ + lanes();
    out_plane_ = block_rows_ * in_.tile_columns * out_row_ + lanes();
  }

  std::size_t scratch_bytes() const override { return static_cast<std::size_t>(slots_ * slot_size()) * sizeof(float); }

  void run(const float* x, const float* bias, const float* residual, float* y, std::byte* scratch) const override {
    const BlockedEnd end{bias, residual, y, end_.low, end_.high};
    auto* memory = reinterpret_cast<float*>(scratch);
    std::atomic<std::int64_t> next = 0;
    for_each(slots_, [&](std::int64_t slot) {
      for (std::int64_t block = next++; block < blocks_; block = next++) {
        run_block(block, x, end, memory + slot * slot_size());
      }
    });
  }

 private:
  std::int64_t slot_size() const { return in_.positions() * (in_plane_ + out_plane_); }

  void run_block(std::int64_t block, const float* x, const BlockedEnd& end, float* memory) const {
    const std::int64_t first = block * block_rows_, last = std::min(rows_, first + block_rows_);
    const std::int64_t tiles = (last - first) * in_.tile_columns;
    const Tiles from{memory, in_plane_, in_row_};
    const Tiles to{memory + in_.positions() * in_plane_, out_plane_, out_row_};
    for_channels(in_.channels, [&](std::int64_t c) { tiles_of_blocked(in_, x, first, last, c, from); });
    for_each(in_.positions(), [&](std::int64_t k) {
      multiply_panels(tiles, inputs_, out_.channels, from.data + k * from.plane, from.row,
                      weights_->as<float>() + k * panel_plane_, to.data + k * to.plane, to.row);
    });
    for_channels(out_.channels, [&](std::int64_t c) {
      blocked_of_tiles(out_, to, first, last, c, end);
      if (end_.function) finish(first, last, c, end.y);
    });
  }

  /// Activations that are no limits, of a vector of channels.
  void finish(std::int64_t first, std::int64_t last, std::int64_t channel, float* y) const {
    for (std::int64_t r = first; r < last; ++r) {
      const std::int64_t top = r % out_.tile_rows * out_.out;
      const std::int64_t rows = std::min(out_.out, out_.height - top);
      const std::int64_t plane = (r / out_.tile_rows * out_.channels + channel) * out_.height * out_.width;
      end_(y + plane + top * out_.width * lanes(), rows * out_.width * lanes());
    }
  }

  std::int64_t inputs_;  ///< channels; images hold whole blocks of them
  Images in_, out_;
  ConvEnd end_;
  std::int64_t in_row_, out_row_;
  std::int64_t rows_;            ///< of tiles, of all images
  std::int64_t block_rows_ = 0;  ///< of tiles that are worked on together
  std::int64_t blocks_ = 0, slots_ = 0;
  std::int64_t panel_plane_ = 0, in_plane_ = 0, out_plane_ = 0;
  std::shared_ptr<const Tensor> weights_;
};

/// What it takes until weights are there, in tiles (or pixels) that they could be multiplied with meanwhile: from a
/// second-level cache, from a third, from memory. Measured.
double arrival(double floats) {
  constexpr double kMiB = 1024 * 1024;
  const double bytes = floats * sizeof(float);
  if (bytes <= 1.5 * kMiB) return 1;
  return bytes <= 12 * kMiB ? 3 : 8;
}

/// What a convolution takes for each pair of channels, in multiplications: directly, or with `out` x `out` results per
/// tile. A channel of a tile is transformed in the time of 12 of its products (measured).
double direct_cost(const ConvGeometry& g) {
  const auto pairs = static_cast<double>(g.in_channels * g.out_channels);
  return 9 * (static_cast<double>(g.batch * g.out_size()) + arrival(9 * pairs));
}

double transformed_cost(const ConvGeometry& g, std::int64_t out) {
  const auto c = static_cast<double>(g.in_channels), k = static_cast<double>(g.out_channels);
  const std::int64_t tiles_of_image = ((g.out[0] + out - 1) / out) * ((g.out[1] + out - 1) / out);
  const auto tiles = static_cast<double>(g.batch * tiles_of_image);
  const auto positions = static_cast<double>((out + 2) * (out + 2));
  return positions * (tiles * (1 + 12 / c + 12 / k) + arrival(positions * c * k));
}

}  // namespace

std::shared_ptr<const BlockedConv> make_winograd(const ConvGeometry& g, const BlockedConvOptions& o,
                                                 const Tensor& weights) {
  if (!has_winograd_windows(g) || !o.blocked_in || o.block != lanes()) return nullptr;
  const std::int64_t best = transformed_cost(g, 4) <= transformed_cost(g, 2) ? 4 : 2;
  if (transformed_cost(g, best) >= 0.9 * direct_cost(g)) return nullptr;
  return std::make_shared<Winograd>(g, o, weights, best);
}

}  // namespace backpass
