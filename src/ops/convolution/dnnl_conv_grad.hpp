// Gradients of a float32 convolution by oneDNN, between tensors in plain layout. The same bits for any number of
// threads.
#pragma once

#include <cstddef>
#include <memory>

#include "kernels/conv.hpp"

namespace backpass {

/// dX from dY and W.
class DnnlConvBackwardData {
 public:
  /// Null when oneDNN has no fast implementation for this case (then kernels/conv.hpp does it).
  static std::shared_ptr<const DnnlConvBackwardData> make(const ConvGeometry& geometry);

  virtual ~DnnlConvBackwardData() = default;
  virtual std::size_t scratch_bytes() const = 0;
  virtual void run(const float* dy, const float* w, float* dx, std::byte* scratch) const = 0;
};

/// dW and dB from X and dY.
class DnnlConvBackwardWeights {
 public:
  static std::shared_ptr<const DnnlConvBackwardWeights> make(const ConvGeometry& geometry, bool has_bias);

  virtual ~DnnlConvBackwardWeights() = default;
  virtual std::size_t scratch_bytes() const = 0;
  /// db: only with has_bias.
  virtual void run(const float* x, const float* dy, float* dw, float* db, std::byte* scratch) const = 0;
};

}  // namespace backpass
