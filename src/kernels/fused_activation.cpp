#include "kernels/fused_activation.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace backpass {
namespace {

constexpr std::array<std::pair<std::string_view, FusedActivation>, 11> kNames{{
    {"none", FusedActivation::none},
    {"relu", FusedActivation::relu},
    {"leaky_relu", FusedActivation::leaky_relu},
    {"clip", FusedActivation::clip},
    {"hard_sigmoid", FusedActivation::hard_sigmoid},
    {"hard_swish", FusedActivation::hard_swish},
    {"sigmoid", FusedActivation::sigmoid},
    {"tanh", FusedActivation::tanh},
    {"silu", FusedActivation::silu},
    {"gelu", FusedActivation::gelu},
    {"gelu_tanh", FusedActivation::gelu_tanh},
}};

template <class T>
T sigmoid(T x) {
  T e = std::exp(-std::abs(x));
  return (x >= 0 ? T(1) : e) / (T(1) + e);
}

template <FusedActivation Kind, class T>
T apply(T x, const float* p) {
  if constexpr (Kind == FusedActivation::relu) return x < 0 ? T(0) : x;
  if constexpr (Kind == FusedActivation::leaky_relu) return x < 0 ? x * static_cast<T>(p[0]) : x;
  if constexpr (Kind == FusedActivation::clip) return std::min(std::max(x, static_cast<T>(p[0])), static_cast<T>(p[1]));
  if constexpr (Kind == FusedActivation::hard_sigmoid || Kind == FusedActivation::hard_swish) {
    T gate = std::min(std::max(x * static_cast<T>(p[0]) + static_cast<T>(p[1]), T(0)), T(1));
    return Kind == FusedActivation::hard_swish ? x * gate : gate;
  }
  if constexpr (Kind == FusedActivation::sigmoid) return sigmoid(x);
  if constexpr (Kind == FusedActivation::tanh) return std::tanh(x);
  if constexpr (Kind == FusedActivation::silu) return x * sigmoid(x * static_cast<T>(p[0]));
  if constexpr (Kind == FusedActivation::gelu) return T(0.5) * x * (T(1) + std::erf(x * T(0.70710678118654752440)));
  if constexpr (Kind == FusedActivation::gelu_tanh) {
    T inner = T(0.79788456080286535588) * (x + T(0.044715) * x * x * x);
    return T(0.5) * x * (T(1) + std::tanh(inner));
  }
}

template <FusedActivation Kind, class T>
void apply_all(T* values, std::int64_t count, const float* parameters) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = apply<Kind, T>(values[i], parameters);
}

}  // namespace

std::optional<FusedActivation> fused_activation_named(std::string_view name) {
  for (const auto& [text, kind] : kNames) {
    if (text == name) return kind;
  }
  return std::nullopt;
}

std::string_view name_of(FusedActivation kind) { return kNames[static_cast<std::size_t>(kind)].first; }

template <class T>
ActivationFunction<T> activation_function(FusedActivation kind) {
  switch (kind) {
    case FusedActivation::none:
      return nullptr;
    case FusedActivation::relu:
      return apply_all<FusedActivation::relu, T>;
    case FusedActivation::leaky_relu:
      return apply_all<FusedActivation::leaky_relu, T>;
    case FusedActivation::clip:
      return apply_all<FusedActivation::clip, T>;
    case FusedActivation::hard_sigmoid:
      return apply_all<FusedActivation::hard_sigmoid, T>;
    case FusedActivation::hard_swish:
      return apply_all<FusedActivation::hard_swish, T>;
    case FusedActivation::sigmoid:
      return apply_all<FusedActivation::sigmoid, T>;
    case FusedActivation::tanh:
      return apply_all<FusedActivation::tanh, T>;
    case FusedActivation::silu:
      return apply_all<FusedActivation::silu, T>;
    case FusedActivation::gelu:
      return apply_all<FusedActivation::gelu, T>;
    case FusedActivation::gelu_tanh:
      return apply_all<FusedActivation::gelu_tanh, T>;
  }
  return nullptr;
}

template ActivationFunction<float> activation_function<float>(FusedActivation);
template ActivationFunction<double> activation_function<double>(FusedActivation);

}  // namespace backpass
