// The derivative that all normalisations by mean and variance share.
#pragma once

#include <cstdint>
#include <vector>

#include "gradient/rule.hpp"

namespace backpass {

/// x brought to variance 1 (and mean 0 when `centered`) over some axes, written down again from x: exact for every
/// element type, where the statistics a forward pass keeps may be narrower than x. float16 and bfloat16 are worked on
/// in float32.
struct Standardized {
  Value* z = nullptr;
  Value* inverse = nullptr;  ///< 1 / sqrt(variance + epsilon), extent 1 along the axes
  std::vector<std::int64_t> axes;
  bool centered = true;
};

Standardized standardize(GradientContext& g, Value* x, std::vector<std::int64_t> axes, double epsilon, bool centered);

/// The gradient of x from that of z.
Value* standardize_gradient(GradientContext& g, const Standardized& s, Value* dz);

/// What the statistics as outputs of their own add to the gradient of x.
Value* mean_gradient(GradientContext& g, const Standardized& s, Value* d_mean);
Value* inverse_gradient(GradientContext& g, const Standardized& s, Value* d_inverse);
Value* variance_gradient(GradientContext& g, const Standardized& s, Value* d_variance);

/// In the element type that standardize works in.
Value* widened(GradientContext& g, Value* a);

/// All axes of a value but its second one: those that one channel covers.
std::vector<std::int64_t> axes_but_channels(std::int64_t rank);
/// One value per channel, so that it broadcasts over a tensor of this rank.
Value* per_channel(GradientContext& g, Value* a, std::int64_t rank);

}  // namespace backpass
