// Pow.
#include <cmath>
#include <limits>
#include <type_traits>

#include "gradient/rule.hpp"
#include "ops/pointwise/pointwise.hpp"
#include "ops/shape_rules.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/pointwise/pow.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

struct Pow {
  template <class T>
  static HWY_INLINE T call(T x, T y, const TileParams&) {
    return std::pow(x, y);
  }
};

// Wraps around; a negative exponent leaves 1, -1 or, truncated, 0.
struct IntegerPow {
  template <class T>
  static HWY_INLINE T call(T base, std::int64_t exponent, const TileParams&) {
    if (exponent < 0) return base == 1 ? 1 : (base == -1 ? (exponent % 2 == 0 ? 1 : -1) : 0);
    using U = std::make_unsigned_t<T>;
    U power = 1;
    for (U square = static_cast<U>(base); exponent != 0; exponent >>= 1, square *= square) {
      if ((exponent & 1) != 0) power *= square;
    }
    return static_cast<T>(power);
  }
};

// An integer raised to a fraction; what does not fit is 0.
template <class T>
struct PowToInteger {
  static HWY_INLINE T call(T base, double exponent, const TileParams&) {
    const double power = std::pow(static_cast<double>(base), exponent);
    const double limit = std::ldexp(1.0, 8 * sizeof(T) - 1);
    return power >= -limit && power < limit ? static_cast<T>(power) : T(0);
  }
};

struct Square {
  template <class T>
  static HWY_INLINE T call(T x, const TileParams&) {
    return x * x;
  }
};

struct Cube {
  template <class T>
  static HWY_INLINE T call(T x, const TileParams&) {
    return x * x * x;
  }
};

// Unlike sqrt, a half power of -infinity is infinity and of -0 is 0.
struct Root {
  template <class D, class V>
  static HWY_INLINE V call(D d, V x, const TileParams&) {
    const V infinity = hn::Set(d, std::numeric_limits<hn::TFromD<D>>::infinity());
    return hn::IfThenElse(hn::Eq(x, hn::Neg(infinity)), infinity, hn::Sqrt(hn::Add(x, hn::Zero(d))));
  }
};

TileLoop pow(DType t) { return real_loop<Pow, 2>(t); }
// Of an integer base; the loop is chosen by the exponent.
template <class T>
TileLoop integer_base(DType exponent) {
  switch (exponent) {
    case DType::int64:
      return elements<IntegerPow, T, T, std::int64_t>;
    case DType::float64:
      return elements<PowToInteger<T>, T, T, double>;
    default:
      return nullptr;
  }
}
TileLoop pow_of_int32(DType exponent) { return integer_base<std::int32_t>(exponent); }
TileLoop pow_of_int64(DType exponent) { return integer_base<std::int64_t>(exponent); }
TileLoop square(DType t) { return real_loop<Square, 1>(t); }
TileLoop cube(DType t) { return real_loop<Cube, 1>(t); }
TileLoop root(DType t) { return vector_loop<Root, 1>(t); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

BACKPASS_TILE_FUNCTION(pow, "Pow", 2);
BACKPASS_TILE_FUNCTION(pow_of_int32, "PowOfInt32", 2);
BACKPASS_TILE_FUNCTION(pow_of_int64, "PowOfInt64", 2);
BACKPASS_TILE_FUNCTION(square, "Square", 1);
BACKPASS_TILE_FUNCTION(cube, "Cube", 1);
BACKPASS_TILE_FUNCTION(root, "Root", 1);

void infer_pow(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.require(types::numbers.has(c.dtype(1)), "element type of the exponent: got ", name_of(c.dtype(1)),
            ", expected one of ", shown(types::numbers));
  c.set_shape(0, rules::broadcast(c, c.shape(0), c.shape(1)));
}

TileRegister emit_pow(TileEmit& e) {
  TileBuilder& b = e.builder;
  TileRegister x = e.inputs[0];
  TileRegister y = e.inputs[1];
  DType type = b.type(x);
  if (!is_float(type)) {
    y = b.convert(y, is_float(b.type(y)) ? DType::float64 : DType::int64);
    return b.apply_as(type == DType::int32 ? pow_of_int32_tile : pow_of_int64_tile, {x, y}, type);
  }
  if (std::optional<double> exponent = b.constant(y)) {
    if (*exponent == 2) return b.apply(square_tile, {x});
    if (*exponent == 3) return b.apply(cube_tile, {x});
    if (*exponent == 0.5) return b.apply(root_tile, {x});
    if (*exponent == -1) return b.apply(tile_div(), {b.immediate(1, type), x});
  }
  // A float64 exponent would lose digits as float32.
  DType wide = b.type(y) == DType::float64 ? DType::float64 : type;
  return b.convert(b.apply(pow_tile, {b.convert(x, wide), b.convert(y, wide)}), type);
}

/// y x^(y-1). An exponent of 0 is kept from becoming -1: 0 times infinity has no value.
Value* slope_of_base(GradientContext& g, Value* x, Value* y) {
  Value* exponent = g.where(g.equal(y, g.zero(y)), g.one(y), y);
  return g.mul(y, g.op("Pow", {x, g.sub(exponent, g.one(y))}));
}

/// x^y log(x), and 0 at x = 0 for y >= 0: what the limit is where y > 0, and what torch says of 0^0.
Value* slope_of_exponent(GradientContext& g, Value* x, Value* y) {
  Value* is_flat = g.op("And", {g.equal(x, g.zero(x)), g.op("GreaterOrEqual", {y, g.zero(y)})});
  return g.mul(g.y(), g.log(g.where(is_flat, g.one(x), x)));
}

void pow_gradient(GradientContext& g) {
  Value* x = g.x(0);
  const std::optional<Tensor>& constant = g.x(1)->constant;
  if (constant && constant->size() == 1 && constant->to_doubles()[0] == 2) {
    g.set_reduced(0, g.mul(g.dy(), g.mul(g.number(2), x)));
    if (g.wants(1))
      g.set_reduced(1, g.cast_like(g.mul(g.dy(), slope_of_exponent(g, x, g.cast_like(g.x(1), x))), g.x(1)));
    return;
  }
  Value* y = g.cast_like(g.x(1), x);
  g.set_reduced(0, g.mul(g.dy(), slope_of_base(g, x, y)));
  if (g.wants(1)) g.set_reduced(1, g.cast_like(g.mul(g.dy(), slope_of_exponent(g, x, y)), g.x(1)));
}

const RegisterPointwise pow_op{{.name = "Pow",
                                .since = 15,
                                .doc = "X to the power of Y, broadcasting, of the type of X.",
                                .inputs = {2, 2},
                                .types = types::floats | types::indices,
                                .infer = infer_pow,
                                .gradient = pow_gradient},
                               {.emit = emit_pow}};

}  // namespace
}  // namespace backpass
#endif
