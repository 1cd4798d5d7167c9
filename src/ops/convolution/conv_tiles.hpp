// The innermost loops of convolution on blocked images, one copy per instruction set. Used through
// ops/convolution/blocked_conv_kernel.hpp.
//
// A convolution is a matrix product whose left operand is never written down: row = output position (pixel), column =
// output channel, and the sum runs over kernel positions and input channels.
#pragma once

#include <cstdint>
#include <limits>

namespace backpass {

/// What every tile of one image and one panel of output channels needs. The sum runs over kernel positions, within one
/// over `blocks` of input channels, within one over `run` neighbouring elements.
struct ConvTiles {
  const float* x = nullptr;
  std::int64_t pixel_step = 8;                    ///< of x, when pixels follow each other there: then `pixel` is null
  const std::int64_t* pixel = nullptr;            ///< where in x kernel position 0 of a pixel lies
  const std::uint64_t* inside = nullptr;          ///< per pixel: bit k: kernel position k lies inside x; null: all do
  std::uint64_t all_inside = 0;                   ///< the mask of a pixel that does not meet the border
  const std::int64_t* position_offset = nullptr;  ///< from a pixel to its elements at a kernel position
  std::int64_t positions = 1;
  std::int64_t blocks = 1;
  std::int64_t block_stride = 0;  ///< elements between blocks of input channels
  std::int64_t run = 8;
  std::int64_t last_run = 8;       ///< of the last block
  const float* weights = nullptr;  ///< [position][block][run][vectors * lanes]
  const float* next = nullptr;     ///< what will be used next, to be fetched meanwhile
  std::int64_t next_lines = 0;     ///< its cache lines
  int vectors = 2;                 ///< of output channels, 1 to 3

  float* y[3] = {};               ///< per vector: its channels at pixel 0
  std::int64_t pixel_stride = 8;  ///< elements between pixels of y
  bool first = true;              ///< the sum starts from bias and residual, else from what y holds
  const float* bias = nullptr;    ///< of the panel, or null
  const float* residual[3] = {};  ///< like y, possibly y itself; null: nothing
  float low = -std::numeric_limits<float>::infinity();  ///< the result is limited to [low, high]; NaN passes
  float high = std::numeric_limits<float>::infinity();
};

struct ConvTileKernels {
  std::int64_t lanes;
  /// Pixels [begin, end).
  void (*tiles)(const ConvTiles& t, std::int64_t begin, std::int64_t end);
};

const ConvTileKernels& conv_tile_kernels();

}  // namespace backpass
