// The loops of depthwise convolution on blocked images, one copy per instruction set. Used through
// ops/convolution/blocked_conv_kernel.hpp.
#pragma once

#include <cstdint>
#include <limits>

namespace backpass {

/// One block of channels of one image of a depthwise convolution.
struct DepthwisePlane {
  /// Along one axis, per output position: kernel positions [begin, end) lie inside the input.
  struct Axis {
    const std::int32_t* begin = nullptr;
    const std::int32_t* end = nullptr;
    std::int64_t out = 0;
    std::int64_t in = 0;
    std::int64_t kernel = 1;
    std::int64_t stride = 1;
    std::int64_t dilation = 1;
    std::int64_t pad = 0;
  };
  Axis rows, cols;
  std::int64_t inner_begin = 0;  ///< output columns that see the whole width of the kernel
  std::int64_t inner_end = 0;
  std::int64_t block = 8;
  const float* x = nullptr;
  const float* weights = nullptr;  ///< [kernel row][kernel column][block]
  const float* bias = nullptr;
  const float* residual = nullptr;
  float* y = nullptr;
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();
};

/// Output rows [begin, end).
void depthwise_rows(const DepthwisePlane& plane, std::int64_t begin, std::int64_t end);

}  // namespace backpass
