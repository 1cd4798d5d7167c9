#include <algorithm>
#include <vector>

#include "ops/convolution/blocked_conv_parts.hpp"
#include "ops/convolution/conv_pixels.hpp"
#include "ops/convolution/conv_tiles.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

// Weights of one panel that are used together; they stay in the first-level cache.
constexpr std::int64_t kChunkBytes = 20 * 1024;
// Pixels whose inputs stay in the second-level cache while all panels pass over them.
constexpr std::int64_t kBlockPixels = 1024;
constexpr std::int64_t kEnoughTasks = 16;
constexpr std::int64_t kLeastPixels = 48;

std::int64_t ceil_of(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The order in which a sum over inputs runs: chunks, kernel positions, blocks of channels, runs of elements.
struct Order {
  std::int64_t run = 1;
  bool run_is_row = false;           ///< elements of a run are kernel columns, not channels
  std::vector<std::int64_t> offset;  ///< per position: from a pixel's first input
  std::vector<std::int64_t> kernel;  ///< per position: in the kernel
  std::int64_t blocks = 1;           ///< of input channels
  std::int64_t block_stride = 0;     ///< elements of the input
  std::int64_t block_channels = 1;
  std::int64_t chunk_blocks = 1;  ///< blocks whose weights are used together
  std::int64_t last_run = 1;      ///< of the last block, which channels may leave a rest of

  std::int64_t run_of(std::int64_t block) const { return block + 1 == blocks ? last_run : run; }
};

Order blocked_order(const ConvGeometry& g, std::int64_t b) {
  Order o;
  o.run = b;
  for (std::int64_t i = 0; i < g.kernel_size(); ++i) {
    std::int64_t row = i / g.kernel[1] * g.dilation[0];
    std::int64_t col = i % g.kernel[1] * g.dilation[1];
    o.offset.push_back((row * g.in[1] + col) * b);
    o.kernel.push_back(i);
  }
  o.blocks = ceil_of(g.in_channels, b);
  o.last_run = g.in_channels - (o.blocks - 1) * b;
  o.block_stride = g.in_size() * b;
  o.block_channels = b;
  return o;
}

/// An image as it comes, in rows of `width` after padding: a run is a row of the kernel, a block one channel.
Order plain_order(const ConvGeometry& g, std::int64_t height, std::int64_t width) {
  Order o;
  o.run_is_row = g.dilation[1] == 1;
  o.run = o.last_run = o.run_is_row ? g.kernel[1] : 1;
  for (std::int64_t i = 0; i < g.kernel_size(); i += o.run) {
    o.offset.push_back(i / g.kernel[1] * g.dilation[0] * width + i % g.kernel[1] * g.dilation[1]);
    o.kernel.push_back(i);
  }
  o.blocks = g.in_channels;
  o.block_stride = height * width;
  return o;
}

/// Panels of output channels: two vectors each; when their number is odd the first panel has three.
struct Panels {
  std::int64_t lanes, vectors;  ///< vectors per group
  bool is_odd() const { return vectors % 2 != 0; }
  std::int64_t count() const { return std::max<std::int64_t>(1, vectors / 2); }
  int vectors_of(std::int64_t panel) const {
    if (vectors == 1) return 1;
    return panel == 0 && is_odd() ? 3 : 2;
  }
  std::int64_t first_channel(std::int64_t panel) const { return (2 * panel + (panel > 0 && is_odd() ? 1 : 0)) * lanes; }
};

/// [group][panel][chunk][position][block][run][vectors * lanes]
Tensor packed_weights(const ConvGeometry& g, const Order& o, const Panels& p, const float* w) {
  Tensor result(DType::float32, {g.groups * g.out_channels * g.column_rows()});
  std::int64_t rows = g.column_rows();
  std::int64_t step = o.run_is_row ? 1 : g.kernel_size();  // between elements of a run
  auto pack_panel = [&](std::int64_t first, std::int64_t count, float* out) {
    for (std::int64_t chunk = 0; chunk < o.blocks; chunk += o.chunk_blocks) {
      for (std::int64_t kernel : o.kernel) {
        for (std::int64_t block = chunk; block < std::min(o.blocks, chunk + o.chunk_blocks); ++block) {
          const float* from = w + first * rows + block * o.block_channels * g.kernel_size() + kernel;
          for (std::int64_t r = 0; r < o.run_of(block); ++r, from += step, out += count) {
            for (std::int64_t c = 0; c < count; ++c) out[c] = from[c * rows];
          }
        }
      }
    }
  };
  parallel_for(g.groups * p.count(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::int64_t panel = i % p.count();
      std::int64_t first = i / p.count() * g.out_channels + p.first_channel(panel);
      pack_panel(first, p.vectors_of(panel) * p.lanes, result.as<float>() + first * rows);
    }
  });
  return result;
}

class Dense : public BlockedConv {
 public:
  Dense(const ConvGeometry& g, const BlockedConvOptions& o, const Tensor& weights)
      : g_(g),
        b_(o.block),
        padded_(!o.blocked_in),
        height_(padded_ ? g.in[0] + g.pad_begin[0] + g.pad_end[0] : g.in[0]),
        width_(padded_ ? g.in[1] + g.pad_begin[1] + g.pad_end[1] : g.in[1]),
        end_(o.activation),
        panels_{conv_tile_kernels().lanes, g.out_channels / conv_tile_kernels().lanes},
        order_(padded_ ? plain_order(g, height_, width_) : blocked_order(g, b_)),
        pixels_(shared_pixels(g, padded_ ? width_ : width_ * b_, padded_ ? 1 : b_, padded_)) {
    std::int64_t positions = static_cast<std::int64_t>(order_.offset.size());
    std::int64_t block_bytes = positions * order_.run * 2 * panels_.lanes * static_cast<std::int64_t>(sizeof(float));
    std::int64_t chunks = ceil_of(order_.blocks * block_bytes, kChunkBytes);
    order_.chunk_blocks = std::max<std::int64_t>(1, ceil_of(order_.blocks, std::max<std::int64_t>(1, chunks)));
    weights_ = shared_pack(weights, g.groups, order_.run,
                           [&] { return packed_weights(g_, order_, panels_, weights.as<float>()); });
    std::int64_t others = g.batch * g.groups * panels_.count();
    std::int64_t size = g.out_size();
    blocks_ = std::max(ceil_of(size, kBlockPixels),
                       std::min(ceil_of(kEnoughTasks, others), std::max<std::int64_t>(1, size / kLeastPixels)));
  }

  std::size_t scratch_bytes() const override {
    return padded_ ? static_cast<std::size_t>(g_.batch * g_.in_channels * height_ * width_) * sizeof(float) : 0;
  }

  void run(const float* x, const float* bias, const float* residual, float* y, std::byte* scratch) const override {
    if (padded_) x = pad(x, reinterpret_cast<float*>(scratch));
    std::int64_t tasks = g_.batch * g_.groups * blocks_ * panels_.count();
    parallel_for(tasks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        std::int64_t panel = t % panels_.count();
        std::int64_t block = t / panels_.count() % blocks_;
        one_panel(t / panels_.count() / blocks_, block, panel, x, bias, residual, y);
      }
    });
  }

 private:
  /// The image with zeros around it.
  const float* pad(const float* x, float* out) const {
    parallel_for(g_.batch * g_.in_channels, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        float* to = out + c * height_ * width_;
        for (std::int64_t i = 0; i < height_; ++i, to += width_) {
          std::int64_t row = i - g_.pad_begin[0];
          std::fill_n(to, width_, 0.0F);
          if (row < 0 || row >= g_.in[0]) continue;
          std::copy_n(x + (c * g_.in[0] + row) * g_.in[1], g_.in[1], to + g_.pad_begin[1]);
        }
      }
    });
    return out;
  }

  void one_panel(std::int64_t image_group, std::int64_t block, std::int64_t panel, const float* x, const float* bias,
                 const float* residual, float* y) const {
    std::int64_t size = g_.out_size();
    std::int64_t begin = block * size / blocks_;
    std::int64_t end = (block + 1) * size / blocks_;
    std::int64_t channel = panels_.first_channel(panel);  // within the group
    std::int64_t group = image_group % g_.groups;
    ConvTiles t;
    t.x = x + image_group * order_.blocks * order_.block_stride;
    t.pixel_step = b_;
    t.pixel = pixels_->start.empty() ? nullptr : pixels_->start.data();
    t.inside = pixels_->inside.empty() ? nullptr : pixels_->inside.data();
    t.all_inside = pixels_->all;
    t.run = order_.run;
    t.position_offset = order_.offset.data();
    t.positions = static_cast<std::int64_t>(order_.offset.size());
    t.block_stride = order_.block_stride;
    t.vectors = panels_.vectors_of(panel);
    t.pixel_stride = b_;
    t.bias = bias != nullptr ? bias + group * g_.out_channels + channel : nullptr;
    for (int j = 0; j < t.vectors; ++j) {
      std::int64_t c = image_group * g_.out_channels + channel + j * panels_.lanes;
      std::int64_t at = c / b_ * b_ * size + c % b_;
      t.y[j] = y + at;
      if (residual != nullptr) t.residual[j] = residual + at;
    }
    t.weights = weights_->as<float>() + (group * g_.out_channels + channel) * g_.column_rows();
    std::int64_t run_weights = t.positions * t.vectors * panels_.lanes;  // of one element of a run
    const float* image = t.x;
    for (std::int64_t chunk = 0; chunk < order_.blocks; chunk += order_.chunk_blocks) {
      t.first = chunk == 0;
      t.blocks = std::min(order_.chunk_blocks, order_.blocks - chunk);
      t.x = image + chunk * order_.block_stride;
      t.last_run = order_.run_of(chunk + t.blocks - 1);
      if (chunk + t.blocks == order_.blocks) {
        t.low = end_.low;
        t.high = end_.high;
      }
      // The next chunk, or the first one of the next panel: it follows in memory.
      t.next = t.weights + ((t.blocks - 1) * order_.run + t.last_run) * run_weights;
      t.next_lines = (t.next - t.weights) / 16;
      conv_tile_kernels().tiles(t, begin, end);
      t.weights = t.next;
    }
    finish(t, begin, end);
  }

  /// The activation, of this panel's channels alone: others may be under way. Panels mostly hold whole blocks.
  void finish(const ConvTiles& t, std::int64_t begin, std::int64_t end) const {
    if (!end_.function) return;
    if (panels_.lanes % b_ == 0) {
      for (std::int64_t c = 0; c < t.vectors * panels_.lanes; c += b_) {
        end_(t.y[0] + c * g_.out_size() + begin * b_, (end - begin) * b_);
      }
      return;
    }
    for (int j = 0; j < t.vectors; ++j) {
      for (std::int64_t q = begin; q < end; ++q) end_(t.y[j] + q * b_, panels_.lanes);
    }
  }

  ConvGeometry g_;
  std::int64_t b_;
  bool padded_;
  std::int64_t height_, width_;  ///< of what the loops read
  ConvEnd end_;
  Panels panels_;
  Order order_;
  std::shared_ptr<const ConvPixels> pixels_;
  std::shared_ptr<const Tensor> weights_;
  std::int64_t blocks_ = 1;  ///< of pixels
};

}  // namespace

std::shared_ptr<const BlockedConv> make_dense(const ConvGeometry& g, const BlockedConvOptions& o,
                                              const Tensor& weights) {
  return std::make_shared<Dense>(g, o, weights);
}

}  // namespace backpass
