// Sigmoid and its gradient, and what is built like it: HardSigmoid, HardSwish, Swish, QuickGelu, SwiGLU, Mish,
// Softplus, Softsign.
#include "gradient/rule.hpp"
#include "ops/pointwise/pointwise.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/activations/sigmoid.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"
#include "kernels/tile_math.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

struct Sigmoid {
  template <class D, class V>
  static HWY_INLINE V call(D d, V x, const TileParams&) {
    return math::sigmoid(d, x);
  }
};

struct SigmoidGrad {
  template <class T>
  static HWY_INLINE T call(T dy, T y, const TileParams&) {
    return dy * y * (T(1) - y);
  }
};

// min(max(p[0] x + p[1], 0), 1)
struct HardSigmoid {
  template <class D, class V>
  static HWY_INLINE V call(D d, V x, const TileParams& p) {
    using T = hn::TFromD<D>;
    const V line = hn::Add(hn::Mul(x, hn::Set(d, static_cast<T>(p[0]))), hn::Set(d, static_cast<T>(p[1])));
    return hn::Min(hn::Set(d, T(1)), hn::Max(hn::Zero(d), line));
  }
};

struct HardSwish {
  template <class D, class V>
  static HWY_INLINE V call(D d, V x, const TileParams& p) {
    return hn::Mul(x, HardSigmoid::call(d, x, p));
  }
};

// x sigmoid(p[0] x)
struct Swish {
  template <class D, class V>
  static HWY_INLINE V call(D d, V x, const TileParams& p) {
    return hn::Mul(x, math::sigmoid(d, hn::Mul(x, hn::Set(d, static_cast<hn::TFromD<D>>(p[0])))));
  }
};

struct SwishGrad {
  template <class D, class V>
  static HWY_INLINE V call(D d, V dy, V x, const TileParams& p) {
    using T = hn::TFromD<D>;
    const V scaled = hn::Mul(x, hn::Set(d, static_cast<T>(p[0])));
    const V gate = math::sigmoid(d, scaled);
    return hn::Mul(dy, hn::MulAdd(hn::Mul(scaled, gate), hn::Sub(hn::Set(d, T(1)), gate), gate));
  }
};

struct SwiGlu {
  template <class D, class V>
  static HWY_INLINE V call(D d, V gate, V x, const TileParams& p) {
    return hn::Mul(Swish::call(d, gate, p), x);
  }
};

// With n = e^x (e^x + 2): tanh(log(1 + e^x)) = n / (n + 2). From x = 20 on it is 1.
struct Mish {
  template <class D, class V>
  static HWY_INLINE V call(D d, V x, const TileParams&) {
    using T = hn::TFromD<D>;
    const V two = hn::Set(d, T(2));
    const V e = math::exp(d, hn::Min(hn::Set(d, T(20)), x));
    const V n = hn::Mul(e, hn::Add(e, two));
    return hn::Mul(x, hn::Div(n, hn::Add(n, two)));
  }
};

struct Softplus {
  template <class D, class V>
  static HWY_INLINE V call(D d, V x, const TileParams&) {
    return math::softplus(d, x);
  }
};

struct Softsign {
  template <class D, class V>
  static HWY_INLINE V call(D d, V x, const TileParams&) {
    return hn::Div(x, hn::Add(hn::Set(d, hn::TFromD<D>(1)), hn::Abs(x)));
  }
};

TileLoop sigmoid(DType t) { return vector_loop<Sigmoid, 1>(t); }
TileLoop sigmoid_grad(DType t) { return real_loop<SigmoidGrad, 2>(t); }
TileLoop hard_sigmoid(DType t) { return vector_loop<HardSigmoid, 1>(t); }
TileLoop hard_swish(DType t) { return vector_loop<HardSwish, 1>(t); }
TileLoop swish(DType t) { return vector_loop<Swish, 1>(t); }
TileLoop swish_grad(DType t) { return vector_loop<SwishGrad, 2>(t); }
TileLoop swiglu(DType t) { return vector_loop<SwiGlu, 2>(t); }
TileLoop mish(DType t) { return vector_loop<Mish, 1>(t); }
TileLoop softplus(DType t) { return vector_loop<Softplus, 1>(t); }
TileLoop softsign(DType t) { return vector_loop<Softsign, 1>(t); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

BACKPASS_TILE_FUNCTION(sigmoid, "Sigmoid", 1);
BACKPASS_TILE_FUNCTION(sigmoid_grad, "SigmoidGrad", 2);
BACKPASS_TILE_FUNCTION(hard_sigmoid, "HardSigmoid", 1);
BACKPASS_TILE_FUNCTION(hard_swish, "HardSwish", 1);
BACKPASS_TILE_FUNCTION(swish, "Swish", 1);
BACKPASS_TILE_FUNCTION(swish_grad, "SwishGrad", 2);
BACKPASS_TILE_FUNCTION(swiglu, "SwiGLU", 2);
BACKPASS_TILE_FUNCTION(mish, "Mish", 1);
BACKPASS_TILE_FUNCTION(softplus, "Softplus", 1);
BACKPASS_TILE_FUNCTION(softsign, "Softsign", 1);

/// y (1 - y)
Value* sigmoid_slope(GradientContext& g, Value* y) { return g.mul(y, g.sub(g.one(), y)); }

void sigmoid_gradient(GradientContext& g) { g.set(0, g.mul(g.dy(), sigmoid_slope(g, g.y()))); }

void sigmoid_fused_gradient(GradientContext& g) { g.set(0, g.op("SigmoidGrad", {g.dy(), g.y()}, {}, "com.microsoft")); }

const RegisterPointwise sigmoid_op{{.name = "Sigmoid",
                                    .since = 13,
                                    .doc = "1 / (1 + e^-X).",
                                    .types = types::floats,
                                    .gradient = sigmoid_gradient,
                                    .fused_gradient = sigmoid_fused_gradient},
                                   {.function = &sigmoid_tile}};
const RegisterPointwise sigmoid_grad_op{{.name = "SigmoidGrad",
                                         .domain = "com.microsoft",
                                         .since = 1,
                                         .doc = "Gradient of Sigmoid from dY and its output: dY Y (1 - Y).",
                                         .types = types::floats},
                                        {.function = &sigmoid_grad_tile}};

// ---- Piecewise linear

TileParams hard_sigmoid_params(const Node& node) {
  return {node.attr_float("alpha", 0.2F), node.attr_float("beta", 0.5F)};
}

TileParams hard_swish_params(const Node&) { return {1.0 / 6, 0.5}; }

void hard_sigmoid_gradient(GradientContext& g) {
  Value* is_sloped = g.op("And", {g.greater(g.y(), g.zero()), g.less(g.y(), g.one())});
  g.set(0, g.where(is_sloped, g.mul(g.dy(), g.number(hard_sigmoid_params(g.node)[0])), g.zero()));
}

void hard_swish_gradient(GradientContext& g) {
  Value* parabola = g.mul(g.dy(), g.add(g.mul(g.x(), g.number(1.0 / 3)), g.number(0.5)));
  Value* from_left = g.where(g.greater(g.x(), g.number(-3)), parabola, g.zero());
  g.set(0, g.where(g.less(g.x(), g.number(3)), from_left, g.dy()));
}

const RegisterPointwise hard_sigmoid_op{{.name = "HardSigmoid",
                                         .since = 22,
                                         .doc = "alpha X + beta, limited to [0, 1].",
                                         .types = types::floats,
                                         .gradient = hard_sigmoid_gradient},
                                        {.function = &hard_sigmoid_tile, .params = hard_sigmoid_params}};
const RegisterPointwise hard_swish_op{{.name = "HardSwish",
                                       .since = 22,
                                       .doc = "X times (X / 6 + 1 / 2 limited to [0, 1]).",
                                       .types = types::floats,
                                       .gradient = hard_swish_gradient},
                                      {.function = &hard_swish_tile, .params = hard_swish_params}};

// ---- Gated

TileParams alpha_or_one(const Node& node) { return {node.attr_float("alpha", 1.0F)}; }
TileParams alpha_of_quick_gelu(const Node& node) { return {node.attr_float("alpha", 1.702F)}; }

// Unlike everywhere else, nothing broadcasts.
void infer_swiglu(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.require(c.dtype(1) == c.dtype(0), "element type of B: got ", name_of(c.dtype(1)), ", expected ",
            name_of(c.dtype(0)));
  c.require(c.rank(0) == c.rank(1), "shape of B: got ", shown(c.shape(1)), ", expected ", shown(c.shape(0)));
  Shape shape;
  for (std::size_t i = 0; i < c.rank(0); ++i)
    shape.push_back(c.unify(c.shape(0)[i], c.shape(1)[i], "extents of A and B"));
  c.set_shape(0, std::move(shape));
}

struct SwishParts {
  Value* gate;   // s = sigmoid(alpha x)
  Value* slope;  // s + alpha x s (1 - s)
};

SwishParts swish_parts(GradientContext& g, double alpha) {
  Value* scaled = g.mul(g.x(), g.number(alpha));
  Value* gate = g.op("Sigmoid", {scaled});
  return {gate, g.add(gate, g.mul(scaled, sigmoid_slope(g, gate)))};
}

template <TileParams (*params)(const Node&)>
void swish_gradient(GradientContext& g) {
  g.set(0, g.mul(g.dy(), swish_parts(g, params(g.node)[0]).slope));
}

void quick_gelu_fused_gradient(GradientContext& g) {
  const float alpha = g.node.attr_float("alpha", 1.702F);
  g.set(0, g.op("QuickGeluGrad", {g.dy(), g.x()}, {{"alpha", alpha}}, "com.microsoft"));
}

void swiglu_gradient(GradientContext& g) {
  const SwishParts parts = swish_parts(g, alpha_or_one(g.node)[0]);
  g.set(0, g.mul(g.mul(g.dy(), g.x(1)), parts.slope));
  g.set(1, g.mul(g.dy(), g.mul(g.x(0), parts.gate)));
}

const RegisterPointwise swish_op{{.name = "Swish",
                                  .since = 24,
                                  .doc = "X sigmoid(alpha X).",
                                  .types = types::floats,
                                  .gradient = swish_gradient<alpha_or_one>},
                                 {.function = &swish_tile, .params = alpha_or_one}};
const RegisterPointwise quick_gelu_op{{.name = "QuickGelu",
                                       .domain = "com.microsoft",
                                       .since = 1,
                                       .doc = "X sigmoid(alpha X).",
                                       .types = types::floats,
                                       .gradient = swish_gradient<alpha_of_quick_gelu>,
                                       .fused_gradient = quick_gelu_fused_gradient},
                                      {.function = &swish_tile, .params = alpha_of_quick_gelu}};
const RegisterPointwise quick_gelu_grad_op{{.name = "QuickGeluGrad",
                                            .domain = "com.microsoft",
                                            .since = 1,
                                            .doc = "Gradient of QuickGelu from dY and X.",
                                            .types = types::floats},
                                           {.function = &swish_grad_tile, .params = alpha_of_quick_gelu}};
const RegisterPointwise swiglu_op{{.name = "SwiGLU",
                                   .since = 28,
                                   .doc = "A sigmoid(alpha A) B.",
                                   .types = types::floats,
                                   .infer = infer_swiglu,
                                   .gradient = swiglu_gradient},
                                  {.function = &swiglu_tile, .params = alpha_or_one}};

// ---- Smooth

/// With t = tanh(softplus(x)): t + x (1 - t^2) sigmoid(x).
void mish_gradient(GradientContext& g) {
  Value* t = g.op("Tanh", {g.op("Softplus", {g.x()})});
  Value* growth = g.mul(g.mul(g.x(), g.sub(g.one(), g.square(t))), g.op("Sigmoid", {g.x()}));
  g.set(0, g.mul(g.dy(), g.add(t, growth)));
}

void softplus_gradient(GradientContext& g) { g.set(0, g.mul(g.dy(), g.op("Sigmoid", {g.x()}))); }

void softsign_gradient(GradientContext& g) { g.set(0, g.div(g.dy(), g.square(g.add(g.one(), g.op("Abs", {g.x()}))))); }

const RegisterPointwise mish_op{
    {.name = "Mish", .since = 22, .doc = "X tanh(log(1 + e^X)).", .types = types::floats, .gradient = mish_gradient},
    {.function = &mish_tile}};
const RegisterPointwise softplus_op{
    {.name = "Softplus", .since = 22, .doc = "log(1 + e^X).", .types = types::floats, .gradient = softplus_gradient},
    {.function = &softplus_tile}};
const RegisterPointwise softsign_op{
    {.name = "Softsign", .since = 22, .doc = "X / (1 + |X|).", .types = types::floats, .gradient = softsign_gradient},
    {.function = &softsign_tile}};

}  // namespace
}  // namespace backpass
#endif
