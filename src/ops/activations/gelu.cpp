// Erf; Gelu, FastGelu and BiasGelu with their gradients.
#include "gradient/rule.hpp"
#include "ops/pointwise/pointwise.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/activations/gelu.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/simd_math-inl.hpp"
#include "kernels/tile_loops.hpp"
#include "kernels/tile_math.hpp"
#include "support/printable.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

template <class D>
HWY_INLINE auto number(D d, double value) {
  return hn::Set(d, static_cast<hn::TFromD<D>>(value));
}

struct Erf {
  template <class D, class V>
  static HWY_INLINE V call(D d, V x, const TileParams&) {
    return math::erf(d, x);
  }
};

// Probability that a normal variable is below x.
template <class D, class V>
HWY_INLINE V normal_below(D d, V x) {
  const V half = number(d, 0.5);
  return hn::MulAdd(math::erf(d, hn::Mul(x, number(d, 0.70710678118654752))), half, half);
}

struct Gelu {
  template <class D, class V>
  static HWY_INLINE V call(D d, V x, const TileParams&) {
    return hn::Mul(x, normal_below(d, x));
  }
};

struct GeluGrad {
  template <class D, class V>
  static HWY_INLINE V call(D d, V dy, V x, const TileParams&) {
    const V bell = exp_of_negative(d, hn::Mul(hn::Mul(x, x), number(d, -0.5)));
    const V density = hn::Mul(bell, number(d, 0.39894228040143268));
    return hn::Mul(dy, hn::MulAdd(x, density, normal_below(d, x)));
  }
};

// (1 + tanh(u)) / 2 is sigmoid(2 u), with 2 u = kA x + kB x^3. Beyond 30 nothing changes, and x^3 stays finite.
struct Approximation {
  static constexpr double kA = 1.5957691216057308;
  static constexpr double kB = 0.071354816272600248;

  template <class D, class V>
  static HWY_INLINE V bounded(D d, V x) {
    return hn::Min(number(d, 30), hn::Max(number(d, -30), x));
  }
  template <class D, class V>
  static HWY_INLINE V gate(D d, V x) {
    return math::sigmoid(d, hn::Mul(x, hn::MulAdd(hn::Mul(x, x), number(d, kB), number(d, kA))));
  }
};

struct FastGelu {
  template <class D, class V>
  static HWY_INLINE V call(D d, V x, const TileParams&) {
    return hn::Mul(x, Approximation::gate(d, Approximation::bounded(d, x)));
  }
};

struct FastGeluGrad {
  template <class D, class V>
  static HWY_INLINE V call(D d, V dy, V x, const TileParams&) {
    const V b = Approximation::bounded(d, x);
    const V gate = Approximation::gate(d, b);
    const V slope = hn::MulAdd(hn::Mul(b, b), number(d, 3 * Approximation::kB), number(d, Approximation::kA));
    const V change = hn::Mul(hn::Mul(gate, hn::Sub(number(d, 1), gate)), slope);
    return hn::Mul(dy, hn::MulAdd(b, change, gate));
  }
};

TileLoop erf(DType t) { return vector_loop<Erf, 1>(t); }
TileLoop gelu(DType t) { return vector_loop<Gelu, 1>(t); }
TileLoop gelu_grad(DType t) { return vector_loop<GeluGrad, 2>(t); }
TileLoop fast_gelu(DType t) { return vector_loop<FastGelu, 1>(t); }
TileLoop fast_gelu_grad(DType t) { return vector_loop<FastGeluGrad, 2>(t); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

BACKPASS_TILE_FUNCTION(erf, "Erf", 1);
BACKPASS_TILE_FUNCTION(gelu, "Gelu", 1);
BACKPASS_TILE_FUNCTION(gelu_grad, "GeluGrad", 2);
BACKPASS_TILE_FUNCTION(fast_gelu, "FastGelu", 1);
BACKPASS_TILE_FUNCTION(fast_gelu_grad, "FastGeluGrad", 2);

/// 2 / sqrt(pi) e^(-x^2)
void erf_gradient(GradientContext& g) {
  Value* bell = g.mul(g.number(1.1283791670955126), g.exp(g.neg(g.square(g.x()))));
  g.set(0, g.mul(g.dy(), bell));
}

const RegisterPointwise erf_op{
    {.name = "Erf", .since = 13, .doc = "Error function.", .types = types::floats, .gradient = erf_gradient},
    {.function = &erf_tile}};

// ---- Gelu of the default domain

void infer_gelu(InferContext& c) {
  std::string approximate = c.node.attr_string("approximate", "none");
  c.require(approximate == "none" || approximate == "tanh", "attribute approximate: got ", printable(approximate),
            ", expected none or tanh");
  infer_tile(c);
}

bool is_fast(const Node& node) { return node.attr_string("approximate", "none") == "tanh"; }

TileRegister emit_gelu(TileEmit& e) {
  return e.builder.apply(is_fast(e.node) ? fast_gelu_tile : gelu_tile, {e.inputs[0]});
}

/// The normal distribution function plus x times its density.
Value* gelu_slope(GradientContext& g, Value* x) {
  Value* erf = g.op("Erf", {g.mul(x, g.number(0.7071067811865476))});
  Value* density = g.mul(g.number(0.3989422804014327), g.exp(g.mul(g.number(-0.5), g.square(x))));
  return g.add(g.mul(g.number(0.5), g.add(g.one(), erf)), g.mul(x, density));
}

/// With t = tanh(a x + b x^3): (1 + t) / 2 + x (1 - t^2) (a + 3 b x^2) / 2.
Value* fast_gelu_slope(GradientContext& g, Value* x) {
  constexpr double a = 0.7978845608028654;
  constexpr double b = 0.044715 * a;
  Value* square = g.square(x);
  Value* t = g.op("Tanh", {g.mul(x, g.add(g.number(a), g.mul(g.number(b), square)))});
  Value* inner = g.mul(x, g.add(g.number(a), g.mul(g.number(3 * b), square)));
  Value* growth = g.mul(g.sub(g.one(), g.square(t)), inner);
  return g.mul(g.number(0.5), g.add(g.add(g.one(), t), growth));
}

void gelu_gradient(GradientContext& g) {
  g.set(0, g.mul(g.dy(), is_fast(g.node) ? fast_gelu_slope(g, g.x()) : gelu_slope(g, g.x())));
}

void gelu_fused_gradient(GradientContext& g) {
  g.set(0, g.op(is_fast(g.node) ? "FastGeluGrad" : "GeluGrad", {g.dy(), g.x()}, {}, "com.microsoft"));
}

const RegisterPointwise gelu_op{{.name = "Gelu",
                                 .since = 20,
                                 .doc = "X times the normal distribution function of X (exact or by tanh).",
                                 .types = types::floats,
                                 .infer = infer_gelu,
                                 .gradient = gelu_gradient,
                                 .fused_gradient = gelu_fused_gradient},
                                {.emit = emit_gelu}};

// ---- com.microsoft: a function of X, of X + bias, and gradients of both from dY and X

template <const TileFunction& F>
TileRegister emit_biased(TileEmit& e) {
  TileRegister x = e.has(1) ? e.builder.apply(tile_add(), {e.inputs[0], e.inputs[1]}) : e.inputs[0];
  return e.builder.apply(F, {x});
}

template <const TileFunction& F>
TileRegister emit_biased_grad(TileEmit& e) {
  return e.builder.apply(F, {e.inputs[0], e.builder.apply(tile_add(), {e.inputs[1], e.inputs[2]})});
}

template <Value* (*slope)(GradientContext&, Value*)>
void biased_gradient(GradientContext& g) {
  Value* x = g.has_input(1) ? g.add(g.x(0), g.x(1)) : g.x(0);
  Value* dx = g.mul(g.dy(), slope(g, x));
  g.set_reduced(0, dx);
  if (g.has_input(1)) g.set_reduced(1, dx);
}

template <bool fast>
void biased_fused_gradient(GradientContext& g) {
  if (!g.has_input(1)) return g.set(0, g.op("FastGeluGrad", {g.dy(), g.x()}, {}, "com.microsoft"));
  Value* dx = g.op(fast ? "BiasFastGeluGrad_dX" : "BiasGeluGrad_dX", {g.dy(), g.x(0), g.x(1)}, {}, "com.microsoft");
  g.set_reduced(0, dx);
  g.set_reduced(1, dx);
}

using Rule = void (*)(GradientContext&);

OpDef contrib(std::string_view name, std::string_view doc, Arity inputs = {1, 1}, Rule gradient = nullptr,
              Rule fused_gradient = nullptr) {
  return {.name = name,
          .domain = "com.microsoft",
          .since = 1,
          .doc = doc,
          .inputs = inputs,
          .types = types::floats,
          .gradient = gradient,
          .fused_gradient = fused_gradient};
}

const RegisterPointwise ms_gelu{contrib("Gelu", "Gelu(X), exact.", {1, 1}, gelu_gradient, gelu_fused_gradient),
                                {.function = &gelu_tile}};
const RegisterPointwise bias_gelu{contrib("BiasGelu", "Gelu(A + B), exact; B is a bias over the last axis.", {2, 2},
                                          biased_gradient<gelu_slope>, biased_fused_gradient<false>),
                                  {.emit = emit_biased<gelu_tile>}};
const RegisterPointwise ms_fast_gelu{contrib("FastGelu", "Gelu(X + bias) by tanh; the bias is optional.", {1, 2},
                                             biased_gradient<fast_gelu_slope>, biased_fused_gradient<true>),
                                     {.emit = emit_biased<fast_gelu_tile>}};
const RegisterPointwise ms_gelu_grad{contrib("GeluGrad", "Gradient of Gelu from dY and X."),
                                     {.function = &gelu_grad_tile}};
const RegisterPointwise ms_fast_gelu_grad{contrib("FastGeluGrad", "Gradient of FastGelu from dY and X."),
                                          {.function = &fast_gelu_grad_tile}};
const RegisterPointwise bias_gelu_grad{contrib("BiasGeluGrad_dX", "Gradient of BiasGelu from dY, X and B.", {3, 3}),
                                       {.emit = emit_biased_grad<gelu_grad_tile>}};
const RegisterPointwise bias_fast_gelu_grad{
    contrib("BiasFastGeluGrad_dX", "Gradient of FastGelu with bias from dY, X and B.", {3, 3}),
    {.emit = emit_biased_grad<fast_gelu_grad_tile>}};

}  // namespace
}  // namespace backpass
#endif
