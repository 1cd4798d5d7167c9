// Convolution of blocked images, [N, C/b, H, W, b], by our own vector loops. Nothing is compiled or tuned at run time,
// so that a new image size costs microseconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "backpass/tensor.hpp"
#include "kernels/conv.hpp"
#include "kernels/tile.hpp"

namespace backpass {

struct BlockedConvOptions {
  std::int64_t block = 8;
  bool blocked_in = true;  ///< else the input is [N, C, H, W]
  UnaryTile activation;
  bool may_transform = false;  ///< Winograd's method may be used
};

class BlockedConv {
 public:
  /// Windows of more positions than this are not covered.
  static constexpr std::int64_t kMaxPositions = 64;

  /// Two spatial axes; output channels fill blocks; one group, or input channels of each group fill blocks, or one
  /// channel per group (depthwise). An unblocked input has one group. Null for what these loops do not cover.
  static std::shared_ptr<const BlockedConv> make(const ConvGeometry& geometry, const BlockedConvOptions& options,
                                                 const Tensor& weights);

  virtual ~BlockedConv() = default;
  virtual std::size_t scratch_bytes() const { return 0; }
  /// y = activation(x * w + bias + residual); bias and residual may be null, residual may be y.
  virtual void run(const float* x, const float* bias, const float* residual, float* y, std::byte* scratch) const = 0;
};

}  // namespace backpass
