// Sin, Cos, Tan, Asin, Acos, Atan.
#include <cmath>

#include "gradient/rule.hpp"
#include "ops/pointwise/pointwise.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/pointwise/trigonometric.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"
#include "kernels/tile_math.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

struct Sin {
  template <class D, class V>
  static HWY_INLINE V call(D d, V x, const TileParams&) {
    return math::sin(d, x);
  }
};

struct Cos {
  template <class D, class V>
  static HWY_INLINE V call(D d, V x, const TileParams&) {
    return math::cos(d, x);
  }
};

struct Tan {
  template <class T>
  static HWY_INLINE T call(T a, const TileParams&) {
    return std::tan(a);
  }
};

struct Asin {
  template <class T>
  static HWY_INLINE T call(T a, const TileParams&) {
    return std::asin(a);
  }
};

struct Acos {
  template <class T>
  static HWY_INLINE T call(T a, const TileParams&) {
    return std::acos(a);
  }
};

struct Atan {
  template <class T>
  static HWY_INLINE T call(T a, const TileParams&) {
    return std::atan(a);
  }
};

TileLoop sin(DType t) { return vector_loop<Sin, 1>(t); }
TileLoop cos(DType t) { return vector_loop<Cos, 1>(t); }
TileLoop tan(DType t) { return real_loop<Tan, 1>(t); }
TileLoop asin(DType t) { return real_loop<Asin, 1>(t); }
TileLoop acos(DType t) { return real_loop<Acos, 1>(t); }
TileLoop atan(DType t) { return real_loop<Atan, 1>(t); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

BACKPASS_TILE_FUNCTION(sin, "Sin", 1);
BACKPASS_TILE_FUNCTION(cos, "Cos", 1);
BACKPASS_TILE_FUNCTION(tan, "Tan", 1);
BACKPASS_TILE_FUNCTION(asin, "Asin", 1);
BACKPASS_TILE_FUNCTION(acos, "Acos", 1);
BACKPASS_TILE_FUNCTION(atan, "Atan", 1);

void sin_gradient(GradientContext& g) { g.set(0, g.mul(g.dy(), g.op("Cos", {g.x()}))); }

void cos_gradient(GradientContext& g) { g.set(0, g.neg(g.mul(g.dy(), g.op("Sin", {g.x()})))); }

void tan_gradient(GradientContext& g) { g.set(0, g.mul(g.dy(), g.add(g.one(), g.square(g.y())))); }

/// sqrt(1 - x^2), exact near 1 and -1.
Value* height(GradientContext& g) { return g.sqrt(g.mul(g.sub(g.one(), g.x()), g.add(g.one(), g.x()))); }

void asin_gradient(GradientContext& g) { g.set(0, g.div(g.dy(), height(g))); }

void acos_gradient(GradientContext& g) { g.set(0, g.neg(g.div(g.dy(), height(g)))); }

void atan_gradient(GradientContext& g) { g.set(0, g.div(g.dy(), g.add(g.one(), g.square(g.x())))); }

const RegisterPointwise sin_op{
    {.name = "Sin", .since = 22, .doc = "Sine.", .types = types::floats, .gradient = sin_gradient},
    {.function = &sin_tile}};
const RegisterPointwise cos_op{
    {.name = "Cos", .since = 22, .doc = "Cosine.", .types = types::floats, .gradient = cos_gradient},
    {.function = &cos_tile}};
const RegisterPointwise tan_op{
    {.name = "Tan", .since = 22, .doc = "Tangent.", .types = types::floats, .gradient = tan_gradient},
    {.function = &tan_tile}};
const RegisterPointwise asin_op{
    {.name = "Asin", .since = 22, .doc = "Inverse sine.", .types = types::floats, .gradient = asin_gradient},
    {.function = &asin_tile}};
const RegisterPointwise acos_op{
    {.name = "Acos", .since = 22, .doc = "Inverse cosine.", .types = types::floats, .gradient = acos_gradient},
    {.function = &acos_tile}};
const RegisterPointwise atan_op{
    {.name = "Atan", .since = 22, .doc = "Inverse tangent.", .types = types::floats, .gradient = atan_gradient},
    {.function = &atan_tile}};

}  // namespace
}  // namespace backpass
#endif
