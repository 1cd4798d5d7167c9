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
  TileCall function;

  explicit ConvEnd(const UnaryTile& activation) {
    const bool limits = activation && activation.function->limits != nullptr;
    const TileLimits l = limits ? activation.function->limits(activation.params) : TileLimits{low, high};
    if (limits && l.low <= l.high) {  // neither is NaN
      low = static_cast<float>(l.low);
      high = static_cast<float>(l.high);
    } else {
      function = activation.bind(DType::float32);
    }
  }
  void operator()(float* values, std::int64_t count) const {
    if (function) function(values, count);
  }
};

/// Weights packed the same way serve all image sizes: one copy for as long as anyone uses it. `form` tells packings of
/// the same weights apart.
std::shared_ptr<const Tensor> shared_pack(const Tensor& weights, std::int64_t groups, std::int64_t form,
                                          const std::function<Tensor()>& pack);

std::shared_ptr<const BlockedConv> make_dense(const ConvGeometry&, const BlockedConvOptions&, const Tensor& weights);
std::shared_ptr<const BlockedConv> make_depthwise(const ConvGeometry&, const BlockedConvOptions&,
                                                  const Tensor& weights);

/// By Winograd's method; null where direct sums are as fast.
std::shared_ptr<const BlockedConv> make_winograd(const ConvGeometry&, const BlockedConvOptions&, const Tensor& weights);

}  // namespace backpass
