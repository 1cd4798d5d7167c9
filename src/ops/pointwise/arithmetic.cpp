// Add, Sub, Mul, Div, Neg, Abs, Reciprocal, Sum, Mean.
#include <cmath>
#include <type_traits>

#include "gradient/rule.hpp"
#include "ops/pointwise/pointwise.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/pointwise/arithmetic.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

struct Add {
  template <class T>
  static HWY_INLINE T call(T a, T b, const TileParams&) {
    return static_cast<T>(a + b);
  }
};

struct Sub {
  template <class T>
  static HWY_INLINE T call(T a, T b, const TileParams&) {
    return static_cast<T>(a - b);
  }
};

struct Mul {
  template <class T>
  static HWY_INLINE T call(T a, T b, const TileParams&) {
    if constexpr (sizeof(T) == 2) return static_cast<T>(static_cast<std::uint32_t>(a) * b);  // int would overflow
    return static_cast<T>(a * b);
  }
};

// Integers: rounds towards zero, x / 0 is 0, the most negative number / -1 wraps around.
struct Div {
  template <class T>
  static HWY_INLINE T call(T a, T b, const TileParams&) {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return 0;
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(0 - static_cast<std::uint64_t>(a));
    }
    return static_cast<T>(a / b);
  }
};

struct Neg {
  template <class T>
  static HWY_INLINE T call(T a, const TileParams&) {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(0 - a);
    return -a;
  }
};

struct Abs {
  template <class T>
  static HWY_INLINE T call(T a, const TileParams&) {
    if constexpr (std::is_floating_point_v<T>) {
      return std::abs(a);
    } else if constexpr (std::is_unsigned_v<T>) {
      return a;
    } else {
      return static_cast<T>(a < 0 ? 0 - static_cast<std::make_unsigned_t<T>>(a) : a);
    }
  }
};

struct Reciprocal {
  template <class T>
  static HWY_INLINE T call(T a, const TileParams&) {
    return T(1) / a;
  }
};

template <class F, int Arity>
TileLoop real_or_wrapping(DType t) {
  TileLoop loop = real_loop<F, Arity>(t);
  return loop != nullptr ? loop : wrapping_loop<F, Arity>(t);
}

TileLoop add(DType t) { return real_or_wrapping<Add, 2>(t); }
TileLoop sub(DType t) { return real_or_wrapping<Sub, 2>(t); }
TileLoop mul(DType t) { return real_or_wrapping<Mul, 2>(t); }
TileLoop div(DType t) { return number_loop<Div, 2>(t); }
TileLoop neg(DType t) { return real_or_wrapping<Neg, 1>(t); }
TileLoop abs(DType t) { return number_loop<Abs, 1>(t); }
TileLoop reciprocal(DType t) { return real_loop<Reciprocal, 1>(t); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

BACKPASS_TILE_FUNCTION(add, "Add", 2);
BACKPASS_TILE_FUNCTION(sub, "Sub", 2);
BACKPASS_TILE_FUNCTION(mul, "Mul", 2);
BACKPASS_TILE_FUNCTION(div, "Div", 2);
BACKPASS_TILE_FUNCTION(neg, "Neg", 1);
BACKPASS_TILE_FUNCTION(abs, "Abs", 1);
BACKPASS_TILE_FUNCTION(reciprocal, "Reciprocal", 1);

// ---- Binary arithmetic

Dim plus(const Dim& a, const Dim& b) { return a + b; }
Dim minus(const Dim& a, const Dim& b) { return a - b; }
Dim times(const Dim& a, const Dim& b) { return a * b; }

Dim quotient(const Dim& a, const Dim& b) { return truncated_div(a, b); }

void add_gradient(GradientContext& g) {
  g.set_reduced(0, g.dy());
  g.set_reduced(1, g.dy());
}

void sub_gradient(GradientContext& g) {
  g.set_reduced(0, g.dy());
  g.set_reduced(1, g.neg(g.dy()));
}

void mul_gradient(GradientContext& g) {
  g.set_reduced(0, g.mul(g.dy(), g.x(1)));
  g.set_reduced(1, g.mul(g.dy(), g.x(0)));
}

void div_gradient(GradientContext& g) {
  Value* da = g.div(g.dy(), g.x(1));
  g.set_reduced(0, da);
  g.set_reduced(1, g.neg(g.div(g.mul(da, g.x(0)), g.x(1))));
}

const RegisterPointwise add_op{{.name = "Add",
                                .since = 14,
                                .doc = "A + B, broadcasting.",
                                .types = types::numbers,
                                .infer = infer_tile_with_ints<plus>,
                                .gradient = add_gradient},
                               {.function = &add_tile}};
const RegisterPointwise sub_op{{.name = "Sub",
                                .since = 14,
                                .doc = "A - B, broadcasting.",
                                .types = types::numbers,
                                .infer = infer_tile_with_ints<minus>,
                                .gradient = sub_gradient},
                               {.function = &sub_tile}};
const RegisterPointwise mul_op{{.name = "Mul",
                                .since = 14,
                                .doc = "A * B, broadcasting.",
                                .types = types::numbers,
                                .infer = infer_tile_with_ints<times>,
                                .gradient = mul_gradient},
                               {.function = &mul_tile}};
const RegisterPointwise div_op{{.name = "Div",
                                .since = 14,
                                .doc = "A / B, broadcasting. Integers round towards zero, and x / 0 is 0.",
                                .types = types::numbers,
                                .infer = infer_tile_with_ints<quotient>,
                                .gradient = div_gradient},
                               {.function = &div_tile}};

// ---- Unary arithmetic

void infer_neg(InferContext& c) {
  infer_tile(c);
  if (auto values = c.maybe_ints(0); values && c.shape(0).size() <= 1) {
    for (Dim& d : *values) {
      std::optional<Dim> negative = unless_it_overflows([&] { return Dim(0) - d; });
      if (!negative) return;
      d = *std::move(negative);
    }
    c.set_ints(0, *std::move(values));
  }
}

void neg_gradient(GradientContext& g) { g.set(0, g.neg(g.dy())); }

const RegisterPointwise neg_op{{.name = "Neg",
                                .since = 13,
                                .doc = "-X.",
                                .types = types::floats | types::signed_integers,
                                .infer = infer_neg,
                                .gradient = neg_gradient},
                               {.function = &neg_tile}};
void abs_gradient(GradientContext& g) { g.set(0, g.mul(g.dy(), g.op("Sign", {g.x()}))); }

void reciprocal_gradient(GradientContext& g) { g.set(0, g.neg(g.mul(g.dy(), g.square(g.y())))); }

const RegisterPointwise abs_op{
    {.name = "Abs", .since = 13, .doc = "|X|.", .types = types::numbers, .gradient = abs_gradient},
    {.function = &abs_tile}};
const RegisterPointwise reciprocal_op{
    {.name = "Reciprocal", .since = 13, .doc = "1 / X.", .types = types::floats, .gradient = reciprocal_gradient},
    {.function = &reciprocal_tile}};

// ---- Sum and Mean of any number of inputs

TileRegister emit_sum(TileEmit& e) {
  TileRegister total = e.inputs[0];
  for (std::size_t i = 1; i < e.inputs.size(); ++i) total = e.builder.apply(add_tile, {total, e.inputs[i]});
  return total;
}

TileRegister emit_mean(TileEmit& e) {
  TileRegister total = emit_sum(e);
  TileRegister count = e.builder.immediate(static_cast<double>(e.inputs.size()), e.builder.type(total));
  return e.inputs.size() == 1 ? total : e.builder.apply(div_tile, {total, count});
}

void sum_gradient(GradientContext& g) {
  for (std::size_t i = 0; i < g.node.inputs.size(); ++i) g.set_reduced(i, g.dy());
}

const RegisterPointwise sum_op{{.name = "Sum",
                                .since = 13,
                                .doc = "Sum of all inputs, broadcasting.",
                                .inputs = {1, -1},
                                .types = types::floats,
                                .gradient = sum_gradient},
                               {.emit = emit_sum}};
void mean_gradient(GradientContext& g) {
  const std::size_t count = g.node.inputs.size();
  Value* share = g.div(g.dy(), g.number(static_cast<double>(count)));
  for (std::size_t i = 0; i < count; ++i) g.set_reduced(i, share);
}

const RegisterPointwise mean_op{{.name = "Mean",
                                 .since = 13,
                                 .doc = "Mean of all inputs, broadcasting.",
                                 .inputs = {1, -1},
                                 .types = types::floats,
                                 .gradient = mean_gradient},
                                {.emit = emit_mean}};

}  // namespace

const TileFunction& tile_add() { return add_tile; }
const TileFunction& tile_mul() { return mul_tile; }
const TileFunction& tile_div() { return div_tile; }

}  // namespace backpass
#endif
