// What the forms of BlockedConv share.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>

#include "ops/convolution/blocked_conv_kernel.hpp"

namespace backpass {

/// Limits that the loops apply themselves, and the function for the other activations.
struct ConvEnd {
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();
  ActivationFunction<float> function = nullptr;
  ActivationSpec spec;

  explicit ConvEnd(const ActivationSpec& s) : spec(s) {
    if (s.kind == FusedActivation::relu || s.kind == FusedActivation::clip) {
      low = s.kind == FusedActivation::relu ? 0 : s.parameters[0];
      if (s.kind == FusedActivation::clip) high = s.parameters[1];
    } else {
      function = activation_function<float>(s.kind);
    }
  }
  void operator()(float* values, std::int64_t count) const {
    if (function != nullptr) function(values, count, spec.parameters);
  }
};

/// Weights packed the same way serve all image sizes: one copy for as long as anyone uses it. `form` tells packings of
/// the same weights apart.
std::shared_ptr<const Tensor> shared_pack(const Tensor& weights, std::int64_t groups, std::int64_t form,
                                          const std::function<Tensor()>& pack);

std::shared_ptr<const BlockedConv> make_dense(const ConvGeometry&, const BlockedConvOptions&, const Tensor& weights);
std::shared_ptr<const BlockedConv> make_depthwise(const ConvGeometry&, const BlockedConvOptions&,
                                                  const Tensor& weights);

}  // namespace backpass
