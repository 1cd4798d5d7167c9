// Shrink.
#include <type_traits>

#include "gradient/rule.hpp"
#include "ops/pointwise/pointwise.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/activations/shrink.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

// p: lambd, bias. Integers are moved by the bias as real numbers, then truncated; what gets below 0 wraps around.
struct Shrink {
  template <class T>
  static HWY_INLINE T call(T x, const TileParams& p) {
    using Real = std::conditional_t<std::is_same_v<T, float>, float, double>;
    const Real value = static_cast<Real>(x);
    const Real lambd = static_cast<Real>(p[0]);
    const Real bias = static_cast<Real>(p[1]);
    const Real moved = value < -lambd ? value + bias : (value > lambd ? value - bias : Real(0));
    if constexpr (std::is_floating_point_v<T>) return moved;
    if constexpr (std::is_unsigned_v<T>) {
      if (moved >= 0x1p63) return static_cast<T>(moved < 0x1p64 ? static_cast<std::uint64_t>(moved) : 0);
    }
    return moved >= -0x1p63 && moved < 0x1p63 ? static_cast<T>(static_cast<std::int64_t>(moved)) : T(0);
  }
};

TileLoop shrink(DType t) { return number_loop<Shrink, 1>(t); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

BACKPASS_TILE_FUNCTION(shrink, "Shrink", 1);

TileParams shrink_params(const Node& node) { return {node.attr_float("lambd", 0.5F), node.attr_float("bias", 0.0F)}; }

void shrink_gradient(GradientContext& g) {
  const double lambd = shrink_params(g.node)[0];
  Value* is_moved = g.op("Or", {g.less(g.x(), g.number(-lambd)), g.greater(g.x(), g.number(lambd))});
  g.set(0, g.where(is_moved, g.dy(), g.zero()));
}

const RegisterPointwise shrink_op{{.name = "Shrink",
                                   .since = 9,
                                   .doc = "0 within lambd of 0, else X moved towards 0 by bias.",
                                   .types = types::numbers,
                                   .gradient = shrink_gradient},
                                  {.function = &shrink_tile, .params = shrink_params}};

}  // namespace
}  // namespace backpass
#endif
