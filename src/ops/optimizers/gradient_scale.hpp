// What gradients of a scaled loss are multiplied by before an optimizer of ONNX Runtime uses them.
#pragma once

#include <cmath>

#include "ops/read_scalar.hpp"

namespace backpass {

class GradientScale {
 public:
  /// Inputs that hold the loss scale and the norm of all gradients, as they come; either may be omitted.
  GradientScale(const PrepareContext& c, std::size_t loss_scale, std::size_t norm)
      : loss_scale_(c, loss_scale, 1), norm_(c, norm, 0) {}

  /// Divides by the loss scale, and clips to max_norm.
  double read(const KernelArgs& a, double max_norm) const {
    const double scale = 1 / loss_scale_.read(a);
    const double norm = norm_.read(a) * scale;
    return norm > max_norm ? scale * max_norm / norm : scale;
  }

 private:
  ScalarInput loss_scale_, norm_;
};

}  // namespace backpass
