// Exp, Log, Sqrt.
#include "gradient/rule.hpp"
#include "ops/pointwise/pointwise.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/pointwise/exponential.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"
#include "kernels/tile_math.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

struct Exp {
  template <class D, class V>
  static HWY_INLINE V call(D d, V x, const TileParams&) {
    return math::exp(d, x);
  }
};

struct Log {
  template <class D, class V>
  static HWY_INLINE V call(D d, V x, const TileParams&) {
    return math::log(d, x);
  }
};

struct Sqrt {
  template <class D, class V>
  static HWY_INLINE V call(D, V x, const TileParams&) {
    return hn::Sqrt(x);
  }
};

TileLoop exp(DType t) { return vector_loop<Exp, 1>(t); }
TileLoop log(DType t) { return vector_loop<Log, 1>(t); }
TileLoop sqrt(DType t) { return vector_loop<Sqrt, 1>(t); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

BACKPASS_TILE_FUNCTION(exp, "Exp", 1);
BACKPASS_TILE_FUNCTION(log, "Log", 1);
BACKPASS_TILE_FUNCTION(sqrt, "Sqrt", 1);

void exp_gradient(GradientContext& g) { g.set(0, g.mul(g.dy(), g.y())); }

void log_gradient(GradientContext& g) { g.set(0, g.div(g.dy(), g.x())); }

void sqrt_gradient(GradientContext& g) { g.set(0, g.div(g.dy(), g.mul(g.number(2), g.y()))); }

const RegisterPointwise exp_op{
    {.name = "Exp", .since = 13, .doc = "e^X.", .types = types::floats, .gradient = exp_gradient},
    {.function = &exp_tile}};
const RegisterPointwise log_op{
    {.name = "Log", .since = 13, .doc = "Natural logarithm.", .types = types::floats, .gradient = log_gradient},
    {.function = &log_tile}};
const RegisterPointwise sqrt_op{
    {.name = "Sqrt", .since = 13, .doc = "Square root.", .types = types::floats, .gradient = sqrt_gradient},
    {.function = &sqrt_tile}};

}  // namespace
}  // namespace backpass
#endif
