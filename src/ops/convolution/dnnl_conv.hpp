// float32 convolution by oneDNN, in plain or blocked layout, with bias and residual sum.
#pragma once

#include <cstddef>
#include <memory>

#include "backpass/tensor.hpp"
#include "kernels/conv.hpp"

namespace backpass {

/// Channels per block of the layout that convolutions like best here: 16 with AVX-512, 8 with AVX2; 0 where oneDNN has
/// no fast blocked convolution.
std::int64_t conv_block();

struct DnnlConvOptions {
  bool blocked_in = false;   ///< X is [N, C/b, spatial..., b]
  bool blocked_out = false;  ///< Y is [N, M/b, spatial..., b]
  bool has_bias = false;
  bool has_sum = false;                      ///< what Y holds beforehand is added
  const Tensor* constant_weights = nullptr;  ///< brought into oneDNN's layout once
};

class DnnlConv {
 public:
  /// Null when oneDNN has no implementation for this case (then kernels/conv.hpp does it).
  static std::shared_ptr<DnnlConv> make(const ConvGeometry& geometry, const DnnlConvOptions& options);

  virtual ~DnnlConv() = default;
  /// 64-byte aligned memory that run() needs.
  virtual std::size_t scratch_bytes() const = 0;
  /// `w` may be null when the weights are constant, `bias` when there is none. Threads may run it at the same time.
  virtual void run(const float* x, const float* w, const float* bias, float* y, std::byte* scratch) const = 0;
};

}  // namespace backpass
