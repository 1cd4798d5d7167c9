// Erf; Gelu, FastGelu, QuickGelu and BiasGelu with their gradients.
#include "kernels/simd.hpp"
#include "ops/pointwise.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gelu.cpp"
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
    const V density = hn::Mul(math::exp(d, hn::Mul(hn::Mul(x, x), number(d, -0.5))), number(d, 0.39894228040143268));
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

struct QuickGelu {
  template <class D, class V>
  static HWY_INLINE V call(D d, V x, const TileParams& p) {
    return hn::Mul(x, math::sigmoid(d, hn::Mul(x, number(d, p[0]))));
  }
};

struct QuickGeluGrad {
  template <class D, class V>
  static HWY_INLINE V call(D d, V dy, V x, const TileParams& p) {
    const V scaled = hn::Mul(x, number(d, p[0]));
    const V gate = math::sigmoid(d, scaled);
    return hn::Mul(dy, hn::MulAdd(hn::Mul(scaled, gate), hn::Sub(number(d, 1), gate), gate));
  }
};

TileLoop erf(DType t) { return vector_loop<Erf, 1>(t); }
TileLoop gelu(DType t) { return vector_loop<Gelu, 1>(t); }
TileLoop gelu_grad(DType t) { return vector_loop<GeluGrad, 2>(t); }
TileLoop fast_gelu(DType t) { return vector_loop<FastGelu, 1>(t); }
TileLoop fast_gelu_grad(DType t) { return vector_loop<FastGeluGrad, 2>(t); }
TileLoop quick_gelu(DType t) { return vector_loop<QuickGelu, 1>(t); }
TileLoop quick_gelu_grad(DType t) { return vector_loop<QuickGeluGrad, 2>(t); }

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
BACKPASS_TILE_FUNCTION(quick_gelu, "QuickGelu", 1);
BACKPASS_TILE_FUNCTION(quick_gelu_grad, "QuickGeluGrad", 2);

const RegisterPointwise erf_op{{.name = "Erf", .since = 13, .doc = "Error function.", .types = types::floats},
                               {.function = &erf_tile}};

// ---- Gelu of the default domain

void infer_gelu(InferContext& c) {
  std::string approximate = c.node.attr_string("approximate", "none");
  c.require(approximate == "none" || approximate == "tanh", "attribute approximate: got '", approximate,
            "', expected none or tanh");
  infer_tile(c);
}

TileRegister emit_gelu(TileEmit& e) {
  bool fast = e.node.attr_string("approximate", "none") == "tanh";
  return e.builder.apply(fast ? fast_gelu_tile : gelu_tile, {e.inputs[0]});
}

const RegisterPointwise gelu_op{{.name = "Gelu",
                                 .since = 20,
                                 .doc = "X times the normal distribution function of X (exact or by tanh).",
                                 .types = types::floats,
                                 .infer = infer_gelu},
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

TileParams quick_gelu_params(const Node& node) { return {node.attr_float("alpha", 1.702F)}; }

OpDef contrib(std::string_view name, std::string_view doc, Arity inputs = {1, 1}) {
  return {.name = name, .domain = "com.microsoft", .since = 1, .doc = doc, .inputs = inputs, .types = types::floats};
}

const RegisterPointwise ms_gelu{contrib("Gelu", "Gelu(X), exact."), {.function = &gelu_tile}};
const RegisterPointwise bias_gelu{contrib("BiasGelu", "Gelu(A + B), exact; B is a bias over the last axis.", {2, 2}),
                                  {.emit = emit_biased<gelu_tile>}};
const RegisterPointwise ms_fast_gelu{contrib("FastGelu", "Gelu(X + bias) by tanh; the bias is optional.", {1, 2}),
                                     {.emit = emit_biased<fast_gelu_tile>}};
const RegisterPointwise ms_quick_gelu{contrib("QuickGelu", "X sigmoid(alpha X)."),
                                      {.function = &quick_gelu_tile, .params = quick_gelu_params}};

const RegisterPointwise ms_gelu_grad{contrib("GeluGrad", "Gradient of Gelu from dY and X."),
                                     {.function = &gelu_grad_tile}};
const RegisterPointwise ms_fast_gelu_grad{contrib("FastGeluGrad", "Gradient of FastGelu from dY and X."),
                                          {.function = &fast_gelu_grad_tile}};
const RegisterPointwise ms_quick_gelu_grad{contrib("QuickGeluGrad", "Gradient of QuickGelu from dY and X."),
                                           {.function = &quick_gelu_grad_tile, .params = quick_gelu_params}};
const RegisterPointwise bias_gelu_grad{contrib("BiasGeluGrad_dX", "Gradient of BiasGelu from dY, X and B.", {3, 3}),
                                       {.emit = emit_biased_grad<gelu_grad_tile>}};
const RegisterPointwise bias_fast_gelu_grad{
    contrib("BiasFastGeluGrad_dX", "Gradient of FastGelu with bias from dY, X and B.", {3, 3}),
    {.emit = emit_biased_grad<fast_gelu_grad_tile>}};

}  // namespace
}  // namespace backpass
#endif
