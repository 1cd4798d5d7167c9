#include "kernels/fused_activation.hpp"

#include <array>
#include <utility>

#include "support/simd.hpp"
#include "support/visit.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/fused_activation.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"
#include "kernels/tile_math.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

template <class D>
HWY_INLINE auto number(D d, double value) {
  return hn::Set(d, static_cast<hn::TFromD<D>>(value));
}

// The same arithmetic as the operators of these names, so that fusing changes nothing.
template <FusedActivation Kind>
struct Function {
  template <class D, class V>
  static HWY_INLINE V call(D d, V x, const TileParams& p) {
    if constexpr (Kind == FusedActivation::relu) {
      return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);
    } else if constexpr (Kind == FusedActivation::leaky_relu) {
      return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Mul(x, number(d, p[0])), x);
    } else if constexpr (Kind == FusedActivation::clip) {
      const V raised = hn::IfThenElse(hn::Lt(x, number(d, p[0])), number(d, p[0]), x);  // NaN stays
      return hn::IfThenElse(hn::Gt(raised, number(d, p[1])), number(d, p[1]), raised);
    } else if constexpr (Kind == FusedActivation::hard_sigmoid) {
      const V line = hn::Add(hn::Mul(x, number(d, p[0])), number(d, p[1]));
      return hn::Min(number(d, 1), hn::Max(hn::Zero(d), line));
    } else if constexpr (Kind == FusedActivation::hard_swish) {
      return hn::Mul(x, Function<FusedActivation::hard_sigmoid>::call(d, x, p));
    } else if constexpr (Kind == FusedActivation::sigmoid) {
      return math::sigmoid(d, x);
    } else if constexpr (Kind == FusedActivation::tanh) {
      return math::tanh(d, x);
    } else if constexpr (Kind == FusedActivation::silu) {
      return hn::Mul(x, math::sigmoid(d, hn::Mul(x, number(d, p[0]))));
    } else if constexpr (Kind == FusedActivation::gelu) {
      const V half = number(d, 0.5);
      return hn::Mul(x, hn::MulAdd(math::erf(d, hn::Mul(x, number(d, 0.70710678118654752))), half, half));
    } else {
      static_assert(Kind == FusedActivation::gelu_tanh);
      const V b = hn::Min(number(d, 30), hn::Max(number(d, -30), x));
      const V line = hn::MulAdd(hn::Mul(b, b), number(d, 0.071354816272600248), number(d, 1.5957691216057308));
      return hn::Mul(x, math::sigmoid(d, hn::Mul(b, line)));
    }
  }
};

template <FusedActivation Kind, class T>
void apply(T* values, std::int64_t count, const float* parameters) {
  const TileParams p{parameters[0], parameters[1]};
  const void* in[] = {values};
  vectors<Function<Kind>, T, 1>(in, values, count, p);
}

template <class T>
ActivationFunction<T> choose(FusedActivation kind) {
  using F = FusedActivation;
  constexpr ActivationFunction<T> kTable[] = {nullptr,
                                              apply<F::relu, T>,
                                              apply<F::leaky_relu, T>,
                                              apply<F::clip, T>,
                                              apply<F::hard_sigmoid, T>,
                                              apply<F::hard_swish, T>,
                                              apply<F::sigmoid, T>,
                                              apply<F::tanh, T>,
                                              apply<F::silu, T>,
                                              apply<F::gelu, T>,
                                              apply<F::gelu_tanh, T>};
  return kTable[static_cast<std::size_t>(kind)];
}

ActivationFunction<float> choose_float(FusedActivation kind) { return choose<float>(kind); }
ActivationFunction<double> choose_double(FusedActivation kind) { return choose<double>(kind); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

HWY_EXPORT(choose_float);
HWY_EXPORT(choose_double);

constexpr std::array<std::string_view, 11> kNames{"none",    "relu", "leaky_relu", "clip", "hard_sigmoid", "hard_swish",
                                                  "sigmoid", "tanh", "silu",       "gelu", "gelu_tanh"};

}  // namespace

std::optional<FusedActivation> fused_activation_named(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<FusedActivation>(i);
  }
  return std::nullopt;
}

std::string_view name_of(FusedActivation kind) { return kNames[static_cast<std::size_t>(kind)]; }

template <>
ActivationFunction<float> activation_function<float>(FusedActivation kind) {
  return HWY_DYNAMIC_DISPATCH(choose_float)(kind);
}

template <>
ActivationFunction<double> activation_function<double>(FusedActivation kind) {
  return HWY_DYNAMIC_DISPATCH(choose_double)(kind);
}

}  // namespace backpass
#endif
