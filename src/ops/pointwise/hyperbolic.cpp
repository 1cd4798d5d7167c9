// Tanh and its gradient, Sinh, Cosh, Asinh, Acosh, Atanh.
#include <cmath>

#include "gradient/rule.hpp"
#include "ops/pointwise/pointwise.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/pointwise/hyperbolic.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"
#include "kernels/tile_math.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

struct Tanh {
  template <class D, class V>
  static HWY_INLINE V call(D d, V x, const TileParams&) {
    return math::tanh(d, x);
  }
};

struct Sinh {
  template <class T>
  static HWY_INLINE T call(T a, const TileParams&) {
    return std::sinh(a);
  }
};

struct Cosh {
  template <class T>
  static HWY_INLINE T call(T a, const TileParams&) {
    return std::cosh(a);
  }
};

struct Asinh {
  template <class T>
  static HWY_INLINE T call(T a, const TileParams&) {
    return std::asinh(a);
  }
};

struct Acosh {
  template <class T>
  static HWY_INLINE T call(T a, const TileParams&) {
    return std::acosh(a);
  }
};

struct Atanh {
  template <class T>
  static HWY_INLINE T call(T a, const TileParams&) {
    return std::atanh(a);
  }
};

struct TanhGrad {
  template <class T>
  static HWY_INLINE T call(T dy, T y, const TileParams&) {
    return dy * (T(1) - y * y);
  }
};

TileLoop tanh(DType t) { return vector_loop<Tanh, 1>(t); }
TileLoop sinh(DType t) { return real_loop<Sinh, 1>(t); }
TileLoop cosh(DType t) { return real_loop<Cosh, 1>(t); }
TileLoop asinh(DType t) { return real_loop<Asinh, 1>(t); }
TileLoop acosh(DType t) { return real_loop<Acosh, 1>(t); }
TileLoop atanh(DType t) { return real_loop<Atanh, 1>(t); }
TileLoop tanh_grad(DType t) { return real_loop<TanhGrad, 2>(t); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

BACKPASS_TILE_FUNCTION(tanh, "Tanh", 1);
BACKPASS_TILE_FUNCTION(sinh, "Sinh", 1);
BACKPASS_TILE_FUNCTION(cosh, "Cosh", 1);
BACKPASS_TILE_FUNCTION(asinh, "Asinh", 1);
BACKPASS_TILE_FUNCTION(acosh, "Acosh", 1);
BACKPASS_TILE_FUNCTION(atanh, "Atanh", 1);
BACKPASS_TILE_FUNCTION(tanh_grad, "TanhGrad", 2);

void tanh_gradient(GradientContext& g) { g.set(0, g.mul(g.dy(), g.sub(g.one(), g.square(g.y())))); }

void tanh_fused_gradient(GradientContext& g) { g.set(0, g.op("TanhGrad", {g.dy(), g.y()}, {}, "com.microsoft")); }

void sinh_gradient(GradientContext& g) { g.set(0, g.mul(g.dy(), g.op("Cosh", {g.x()}))); }

void cosh_gradient(GradientContext& g) { g.set(0, g.mul(g.dy(), g.op("Sinh", {g.x()}))); }

void asinh_gradient(GradientContext& g) { g.set(0, g.div(g.dy(), g.sqrt(g.add(g.square(g.x()), g.one())))); }

/// (x - 1) (x + 1) is x^2 - 1 without its rounding near 1 and -1.
Value* square_minus_one(GradientContext& g) { return g.mul(g.sub(g.x(), g.one()), g.add(g.x(), g.one())); }

void acosh_gradient(GradientContext& g) { g.set(0, g.div(g.dy(), g.sqrt(square_minus_one(g)))); }

void atanh_gradient(GradientContext& g) { g.set(0, g.neg(g.div(g.dy(), square_minus_one(g)))); }

const RegisterPointwise tanh_op{{.name = "Tanh",
                                 .since = 13,
                                 .doc = "Hyperbolic tangent.",
                                 .types = types::floats,
                                 .gradient = tanh_gradient,
                                 .fused_gradient = tanh_fused_gradient},
                                {.function = &tanh_tile}};
const RegisterPointwise sinh_op{
    {.name = "Sinh", .since = 22, .doc = "Hyperbolic sine.", .types = types::floats, .gradient = sinh_gradient},
    {.function = &sinh_tile}};
const RegisterPointwise cosh_op{
    {.name = "Cosh", .since = 22, .doc = "Hyperbolic cosine.", .types = types::floats, .gradient = cosh_gradient},
    {.function = &cosh_tile}};
const RegisterPointwise asinh_op{{.name = "Asinh",
                                  .since = 22,
                                  .doc = "Inverse hyperbolic sine.",
                                  .types = types::floats,
                                  .gradient = asinh_gradient},
                                 {.function = &asinh_tile}};
const RegisterPointwise acosh_op{{.name = "Acosh",
                                  .since = 22,
                                  .doc = "Inverse hyperbolic cosine.",
                                  .types = types::floats,
                                  .gradient = acosh_gradient},
                                 {.function = &acosh_tile}};
const RegisterPointwise atanh_op{{.name = "Atanh",
                                  .since = 22,
                                  .doc = "Inverse hyperbolic tangent.",
                                  .types = types::floats,
                                  .gradient = atanh_gradient},
                                 {.function = &atanh_tile}};
const RegisterPointwise tanh_grad_op{{.name = "TanhGrad",
                                      .domain = "com.microsoft",
                                      .since = 1,
                                      .doc = "Gradient of Tanh from dY and its output: dY (1 - Y^2).",
                                      .types = types::floats},
                                     {.function = &tanh_grad_tile}};

}  // namespace
}  // namespace backpass
#endif
