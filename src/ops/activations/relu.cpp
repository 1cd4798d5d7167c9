// Relu, LeakyRelu, PRelu, ThresholdedRelu, and the gradients of the first two.
#include <limits>
#include <type_traits>

#include "gradient/rule.hpp"
#include "ops/pointwise/pointwise.hpp"
#include "ops/shape_rules.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/activations/relu.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

struct Relu {
  template <class T>
  static HWY_INLINE T call(T x, const TileParams&) {
    return x < 0 ? T(0) : x;
  }
};

struct ReluGrad {
  template <class T>
  static HWY_INLINE T call(T dy, T x, const TileParams&) {
    return x > 0 ? dy : T(0);
  }
};

struct LeakyRelu {
  template <class T>
  static HWY_INLINE T call(T x, const TileParams& p) {
    const T scaled = x * static_cast<T>(p[0]);
    return x < 0 ? scaled : x;
  }
};

struct LeakyReluGrad {
  template <class T>
  static HWY_INLINE T call(T dy, T y, const TileParams& p) {
    const T scaled = dy * static_cast<T>(p[0]);
    return y > 0 ? dy : scaled;
  }
};

struct PRelu {
  template <class T>
  static HWY_INLINE T call(T x, T slope, const TileParams&) {
    if constexpr (std::is_unsigned_v<T>) return x;
    if constexpr (std::is_floating_point_v<T>) return x < 0 ? x * slope : x;
    using U = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;  // wraps around
    return x < 0 ? static_cast<T>(static_cast<U>(x) * static_cast<U>(slope)) : x;
  }
};

struct ThresholdedRelu {
  template <class T>
  static HWY_INLINE T call(T x, const TileParams& p) {
    return x > static_cast<T>(p[0]) ? x : (x != x ? x : T(0));
  }
};

TileLoop relu(DType t) {
  TileLoop loop = real_loop<Relu, 1>(t);
  return loop != nullptr ? loop : signed_loop<Relu, 1>(t);
}
TileLoop relu_grad(DType t) { return real_loop<ReluGrad, 2>(t); }
TileLoop leaky_relu(DType t) { return real_loop<LeakyRelu, 1>(t); }
TileLoop leaky_relu_grad(DType t) { return real_loop<LeakyReluGrad, 2>(t); }
TileLoop prelu(DType t) { return number_loop<PRelu, 2>(t); }
TileLoop thresholded_relu(DType t) { return real_loop<ThresholdedRelu, 1>(t); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

TileLimits relu_limits(const TileParams&) { return {0, std::numeric_limits<double>::infinity()}; }

BACKPASS_TILE_FUNCTION(relu, "Relu", 1, false, relu_limits);
BACKPASS_TILE_FUNCTION(relu_grad, "ReluGrad", 2);
BACKPASS_TILE_FUNCTION(leaky_relu, "LeakyRelu", 1);
BACKPASS_TILE_FUNCTION(leaky_relu_grad, "LeakyReluGrad", 2);
BACKPASS_TILE_FUNCTION(prelu, "PRelu", 2);
BACKPASS_TILE_FUNCTION(thresholded_relu, "ThresholdedRelu", 1);

void relu_gradient(GradientContext& g) { g.set(0, g.where(g.greater(g.y(), g.zero()), g.dy(), g.zero())); }

void relu_fused_gradient(GradientContext& g) { g.set(0, g.op("ReluGrad", {g.dy(), g.y()}, {}, "com.microsoft")); }

const RegisterPointwise relu_op{{.name = "Relu",
                                 .since = 14,
                                 .doc = "max(X, 0).",
                                 .types = types::floats | types::signed_integers,
                                 .gradient = relu_gradient,
                                 .fused_gradient = relu_fused_gradient},
                                {.function = &relu_tile}};
const RegisterPointwise relu_grad_op{{.name = "ReluGrad",
                                      .domain = "com.microsoft",
                                      .since = 1,
                                      .doc = "Gradient of Relu from dY and its input or output: dY where X > 0.",
                                      .types = types::floats},
                                     {.function = &relu_grad_tile}};

// ---- LeakyRelu

TileParams leaky_params(const Node& node) { return {node.attr_float("alpha", 0.01F)}; }

void leaky_relu_gradient(GradientContext& g) {
  Value* scaled = g.mul(g.dy(), g.number(leaky_params(g.node)[0]));
  g.set(0, g.where(g.greater(g.x(), g.zero()), g.dy(), scaled));
}

/// From the output, as ONNX Runtime does; a negative alpha makes all outputs positive, but the input says the same.
void leaky_relu_fused_gradient(GradientContext& g) {
  const float alpha = g.node.attr_float("alpha", 0.01F);
  Value* sign = alpha < 0 ? g.x() : g.y();
  g.set(0, g.op("LeakyReluGrad", {g.dy(), sign}, {{"alpha", alpha}}, "com.microsoft"));
}

const RegisterPointwise leaky_relu_op{{.name = "LeakyRelu",
                                       .since = 16,
                                       .doc = "X, times alpha where negative.",
                                       .types = types::floats,
                                       .gradient = leaky_relu_gradient,
                                       .fused_gradient = leaky_relu_fused_gradient},
                                      {.function = &leaky_relu_tile, .params = leaky_params}};
const RegisterPointwise leaky_relu_grad_op{{.name = "LeakyReluGrad",
                                            .domain = "com.microsoft",
                                            .since = 1,
                                            .doc = "Gradient of LeakyRelu from dY and its output.",
                                            .types = types::floats},
                                           {.function = &leaky_relu_grad_tile, .params = leaky_params}};

// ---- PRelu

void infer_prelu(InferContext& c) {
  infer_tile(c);
  c.require(c.rank(1) <= c.rank(0), "slope: got shape ", shown(c.shape(1)), ", expected one that broadcasts to ",
            shown(c.shape(0)));
  const Shape& broadcast = *c.outputs[0].shape;
  for (std::size_t i = 0; i < broadcast.size(); ++i) {
    bool grew = c.shape(0)[i].is(1) && broadcast[i].is_known() && !broadcast[i].is(1);
    c.require(!grew, "slope: got shape ", shown(c.shape(1)), ", expected one that broadcasts to ", shown(c.shape(0)));
  }
  c.set_shape(0, c.shape(0));
}

void prelu_gradient(GradientContext& g) {
  Value* is_positive = g.greater(g.x(0), g.zero());
  g.set(0, g.where(is_positive, g.dy(), g.mul(g.dy(), g.x(1))));
  g.set_reduced(1, g.where(is_positive, g.zero(), g.mul(g.dy(), g.x(0))));
}

const RegisterPointwise prelu_op{{.name = "PRelu",
                                  .since = 16,
                                  .doc = "X, times slope where negative; slope broadcasts to X.",
                                  .types = types::floats | types::indices | DTypeSet{DType::uint32, DType::uint64},
                                  .infer = infer_prelu,
                                  .gradient = prelu_gradient},
                                 {.function = &prelu_tile}};

// ---- ThresholdedRelu

TileParams threshold(const Node& node) { return {node.attr_float("alpha", 1.0F)}; }

void thresholded_relu_gradient(GradientContext& g) {
  g.set(0, g.where(g.greater(g.x(), g.number(threshold(g.node)[0])), g.dy(), g.zero()));
}

const RegisterPointwise thresholded_relu_op{{.name = "ThresholdedRelu",
                                             .since = 22,
                                             .doc = "X where it is larger than alpha, else 0.",
                                             .types = types::floats,
                                             .gradient = thresholded_relu_gradient},
                                            {.function = &thresholded_relu_tile, .params = threshold}};

}  // namespace
}  // namespace backpass
#endif
