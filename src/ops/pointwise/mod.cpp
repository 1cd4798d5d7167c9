// Mod.
#include <cmath>
#include <type_traits>

#include "gradient/rule.hpp"
#include "ops/pointwise/pointwise.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/pointwise/mod.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

// x mod 0 is 0 for integers. Dividing by -1 is kept from the processor: the most negative number would trap.
struct TruncatedMod {
  template <class T>
  static HWY_INLINE T call(T a, T b, const TileParams&) {
    if constexpr (std::is_floating_point_v<T>) {
      return std::fmod(a, b);
    } else {
      if (b == 0 || (std::is_signed_v<T> && b == static_cast<T>(-1))) return 0;
      return static_cast<T>(a % b);
    }
  }
};

struct FlooredMod {
  template <class T>
  static HWY_INLINE T call(T a, T b, const TileParams& p) {
    const T m = TruncatedMod::call(a, b, p);
    if constexpr (std::is_floating_point_v<T>) {
      if (m == 0) return std::copysign(m, b);
    }
    return m != 0 && (m < 0) != (b < 0) ? static_cast<T>(m + b) : m;
  }
};

TileLoop truncated_mod(DType t) { return number_loop<TruncatedMod, 2>(t); }
TileLoop floored_mod(DType t) { return number_loop<FlooredMod, 2>(t); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

BACKPASS_TILE_FUNCTION(truncated_mod, "TruncatedMod", 2);
BACKPASS_TILE_FUNCTION(floored_mod, "Mod", 2);

bool truncates(const Node& node) { return node.attr_int("fmod", 0) != 0; }

// Divisors that may be 0 are left to the kernel.
std::optional<Dim> floored_remainder(const Dim& a, const Dim& b) {
  if (!surely_at_least(b, 1) && !surely_negative(b)) return std::nullopt;
  return a - floor_div(a, b) * b;
}

std::optional<Dim> truncated_remainder(const Dim& a, const Dim& b) {
  if (!surely_at_least(b, 1) && !surely_negative(b)) return std::nullopt;
  return a - truncated_div(a, b) * b;
}

void infer_mod(InferContext& c) {
  infer_tile(c);
  propagate_ints(c, truncates(c.node) ? truncated_remainder : floored_remainder);
}

TileRegister emit_mod(TileEmit& e) {
  return e.builder.apply(truncates(e.node) ? truncated_mod_tile : floored_mod_tile, {e.inputs[0], e.inputs[1]});
}

/// A - q B for a whole number q, whichever way it was rounded.
void mod_gradient(GradientContext& g) {
  g.set_reduced(0, g.dy());
  Value* quotient = g.op("Round", {g.div(g.sub(g.x(0), g.y()), g.x(1))});
  g.set_reduced(1, g.neg(g.mul(g.dy(), quotient)));
}

const RegisterPointwise mod_op{
    {.name = "Mod",
     .since = 28,
     .doc = "Remainder with the sign of B (fmod=0) or of A (fmod=1), broadcasting. Integer x mod 0 is 0.",
     .inputs = {2, 2},
     .types = types::numbers,
     .infer = infer_mod,
     .gradient = mod_gradient},
    {.emit = emit_mod}};

}  // namespace
}  // namespace backpass
#endif
