// Ceil, Floor, Round, Sign.
#include "ops/pointwise/pointwise.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/pointwise/rounding.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

struct Ceil {
  template <class D, class V>
  static HWY_INLINE V call(D, V x, const TileParams&) {
    return hn::Ceil(x);
  }
};

struct Floor {
  template <class D, class V>
  static HWY_INLINE V call(D, V x, const TileParams&) {
    return hn::Floor(x);
  }
};

struct Round {
  template <class D, class V>
  static HWY_INLINE V call(D, V x, const TileParams&) {
    return hn::Round(x);
  }
};

struct Sign {
  template <class T>
  static HWY_INLINE T call(T a, const TileParams&) {
    return a > 0 ? T(1) : (a < 0 ? static_cast<T>(-1) : a);  // a is a zero or NaN
  }
};

TileLoop ceil(DType t) { return vector_loop<Ceil, 1>(t); }
TileLoop floor(DType t) { return vector_loop<Floor, 1>(t); }
TileLoop round(DType t) { return vector_loop<Round, 1>(t); }
TileLoop sign(DType t) { return number_loop<Sign, 1>(t); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

BACKPASS_TILE_FUNCTION(ceil, "Ceil", 1);
BACKPASS_TILE_FUNCTION(floor, "Floor", 1);
BACKPASS_TILE_FUNCTION(round, "Round", 1);
BACKPASS_TILE_FUNCTION(sign, "Sign", 1);

const RegisterPointwise ceil_op{
    {.name = "Ceil", .since = 13, .doc = "Rounded up.", .types = types::floats, .is_flat = true},
    {.function = &ceil_tile}};
const RegisterPointwise floor_op{
    {.name = "Floor", .since = 13, .doc = "Rounded down.", .types = types::floats, .is_flat = true},
    {.function = &floor_tile}};
const RegisterPointwise round_op{{.name = "Round",
                                  .since = 22,
                                  .doc = "Rounded to nearest, halves to even.",
                                  .types = types::floats,
                                  .is_flat = true},
                                 {.function = &round_tile}};
const RegisterPointwise sign_op{
    {.name = "Sign", .since = 13, .doc = "-1, 0 or 1.", .types = types::numbers, .is_flat = true},
    {.function = &sign_tile}};

}  // namespace
}  // namespace backpass
#endif
