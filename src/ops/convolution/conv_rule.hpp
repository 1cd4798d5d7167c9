// Gradients of convolution and of its transpose, in standard operators.
#pragma once

#include <span>
#include <vector>

#include "gradient/rule.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {

/// A convolution Y = X * W as its gradients see it. All pads are numbers; a kernel extent is 0 where it is not known.
struct ConvForm {
  std::vector<rules::Window> windows;
  std::int64_t group = 1;
};

/// The windows that the node's attributes and a kernel of these extents put over x.
ConvForm window_form(const GradientContext& g, const Value* x, std::span<const Dim> kernel);

/// With an auto_pad of SAME_*, symbolic extents and strides, padding is known only at run time: then the windows'
/// pads become zero, and what must be put around x is returned, [begins, ends] of every axis. Null: pads are numbers.
/// `kernel`: 1-D int64 extents.
Value* unsettled_pads(GradientContext& g, ConvForm& form, Value* x, Value* kernel);

/// Without the padding again, of the shape of `like`.
Value* cropped(GradientContext& g, Value* padded, Value* pads, Value* like);

/// What ConvTranspose(dY, W) gives of the shape of X.
Value* conv_input_gradient(GradientContext& g, const ConvForm& form, Value* dy, Value* x, Value* w);

/// The convolution itself, of the shape of `like`.
Value* conv_forward(GradientContext& g, const ConvForm& form, Value* x, Value* w, Value* like);

/// Of the shape of W.
Value* conv_weight_gradient(GradientContext& g, const ConvForm& form, Value* dy, Value* x, Value* w);

/// Sums over everything but channels.
Value* conv_bias_gradient(GradientContext& g, Value* dy);

void conv_gradient(GradientContext& g);
void conv_fused_gradient(GradientContext& g);

}  // namespace backpass
