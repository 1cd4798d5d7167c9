// The steps of Winograd's convolutions, over memory: vectors hold neighbouring channels.
//
// Tiles are numbered by image, row and column; a row of tiles is what a call works on. Transformed tiles lie as
// [position in the tile][tile][channel], transformed weights as [position][panel of outputs][input][output].
#pragma once

#include <cstdint>

namespace backpass::winograd {

/// Channels in a vector here, and outputs in a panel of transformed weights.
std::int64_t lanes();
std::int64_t panel_width();

/// Images [n, channels, height, width], cut into squares of `out` x `out` results each.
struct Images {
  std::int64_t channels, height, width;
  std::int64_t tile_rows, tile_columns;  ///< squares of one image
  std::int64_t out;                      ///< 2 or 4
  std::int64_t pad_top = 0, pad_left = 0;
  bool is_narrow = false;  ///< elements are bfloat16, not float32; what is computed from them is float32 either way

  std::int64_t tile() const { return out + 2; }
  std::int64_t positions() const { return tile() * tile(); }
};

/// Where transformed tiles lie: element (position, tile, channel) is data[position * plane + tile * row + channel].
struct Tiles {
  float* data;
  std::int64_t plane, row;
};

/// Tiles of rows [first, last) with their borders, of `lanes()` channels from `channel` on. The first tile of row
/// `first` becomes tile 0.
void tiles_of_images(const Images& images, const void* x, std::int64_t first, std::int64_t last, std::int64_t channel,
                     const Tiles& to);
/// The same for gradients of results, which have no borders.
void tiles_of_results(const Images& images, const void* dy, std::int64_t first, std::int64_t last, std::int64_t channel,
                      const Tiles& to);
/// Tiles to results, plus bias (null: none).
void results_of_tiles(const Images& images, const Tiles& from, std::int64_t first, std::int64_t last,
                      std::int64_t channel, const float* bias, void* y);

/// The same for images in blocks of `lanes()` channels, [n, channels / lanes(), height, width, lanes()]; channels fill
/// them.
void tiles_of_blocked(const Images& images, const float* x, std::int64_t first, std::int64_t last, std::int64_t channel,
                      const Tiles& to);
/// What becomes of results on their way to memory: bias and residual (null: none) are added, then limits hold.
/// `residual` lies like `y`, and may be it.
struct BlockedEnd {
  const float* bias;
  const float* residual;
  float* y;
  float low, high;
};
void blocked_of_tiles(const Images& images, const Tiles& from, std::int64_t first, std::int64_t last,
                      std::int64_t channel, const BlockedEnd& end);

/// Weights of a 3 x 3 convolution: element (output, input, 3 x 3) is data[output * output_step + input * input_step].
struct Weights {
  std::int64_t outputs, inputs, output_step, input_step;
  bool is_flipped = false;  ///< 3 x 3 back to front
};

/// One panel: outputs [panel * panel_width(), ...), of all inputs. `plane`: distance of positions.
void panel_of_weights(const Weights& weights, const float* w, std::int64_t out, std::int64_t panel, std::int64_t plane,
                      float* to);
/// The gradient of output `output`'s weights from [position][output][input].
void weights_of_tiles(const Weights& weights, const Tiles& from, std::int64_t out, std::int64_t output, float* dw);

/// results[tile][output] = sum of tiles[tile][input] * panels[input][output] at one position.
void multiply_panels(std::int64_t tiles, std::int64_t inputs, std::int64_t outputs, const float* from,
                     std::int64_t from_row, const float* panels, float* to, std::int64_t to_row);
/// gradient[output][input] (+)= sum over tiles of dy[tile][output] * x[tile][input] at one position; inputs in whole
/// panels.
void multiply_tiles(std::int64_t tiles, std::int64_t outputs, std::int64_t inputs, const float* dy, std::int64_t dy_row,
                    const float* x, std::int64_t x_row, float* to, std::int64_t to_row, bool add);

}  // namespace backpass::winograd
