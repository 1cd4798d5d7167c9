// Gradients of convolution and of its transpose, in standard operators.
#pragma once

#include <vector>

#include "gradient/rule.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {

/// A convolution Y = X * W as its gradients see it. All pads are numbers; a kernel extent is 0 where it is not known.
struct ConvForm {
  std::vector<rules::Window> windows;
  std::int64_t group = 1;
};

/// What ConvTranspose(dY, W) gives of the shape of X.
Value* conv_input_gradient(GradientContext& g, const ConvForm& form, Value* dy, Value* x, Value* w);

/// Of the shape of W.
Value* conv_weight_gradient(GradientContext& g, const ConvForm& form, Value* dy, Value* x, Value* w);

/// Sums over everything but channels.
Value* conv_bias_gradient(GradientContext& g, Value* dy);

void conv_gradient(GradientContext& g);
void conv_fused_gradient(GradientContext& g);

}  // namespace backpass
