// Activations that matrix products and convolutions apply to their result while it is still in cache.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/gemm.hpp"

namespace backpass {

enum class FusedActivation : std::uint8_t {
  none,
  relu,
  leaky_relu,    ///< parameter 0: slope below zero
  clip,          ///< parameters: lower and upper bound
  hard_sigmoid,  ///< max(0, min(1, p0 x + p1))
  hard_swish,    ///< x max(0, min(1, p0 x + p1))
  sigmoid,
  tanh,
  silu,  ///< x sigmoid(p0 x)
  gelu,
  gelu_tanh,
};

/// "relu" <-> FusedActivation::relu and so on; the names are the enumerators.
std::optional<FusedActivation> fused_activation_named(std::string_view name);
std::string_view name_of(FusedActivation);

template <class T>
using ActivationFunction = void (*)(T* values, std::int64_t count, const float* parameters);

/// Null for `none`.
template <class T>
ActivationFunction<T> activation_function(FusedActivation);

struct ActivationSpec {
  FusedActivation kind = FusedActivation::none;
  float parameters[2] = {0, 0};

  /// Without bias and without parameters, whose addresses the caller knows.
  template <class T>
  Epilogue<T> epilogue() const {
    Epilogue<T> e;
    if (kind == FusedActivation::relu) {
      e.relu = true;
    } else {
      e.activate = activation_function<T>(kind);
    }
    return e;
  }
};

}  // namespace backpass
