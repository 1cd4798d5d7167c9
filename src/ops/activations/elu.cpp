// Elu, Selu, Celu.
#include "gradient/rule.hpp"
#include "ops/pointwise/pointwise.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/activations/elu.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "kernels/tile_loops.hpp"
#include "kernels/tile_math.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

// x > 0 ? p[1] x : p[0] (e^(x p[2]) - 1): all three are of this form.
struct Elu {
  template <class D, class V>
  static HWY_INLINE V call(D d, V x, const TileParams& p) {
    using T = hn::TFromD<D>;
    const V inner = hn::Mul(hn::Min(hn::Zero(d), x), hn::Set(d, static_cast<T>(p[2])));
    const V negative = hn::Mul(hn::Set(d, static_cast<T>(p[0])), math::expm1_of_negative(d, inner));
    return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Mul(x, hn::Set(d, static_cast<T>(p[1]))), negative);
  }
};

TileLoop elu(DType t) { return vector_loop<Elu, 1>(t); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

BACKPASS_TILE_FUNCTION(elu, "Elu", 1);

TileParams elu_params(const Node& node) { return {node.attr_float("alpha", 1.0F), 1, 1}; }

TileParams selu_params(const Node& node) {
  double gamma = node.attr_float("gamma", 1.0507010221481323F);
  return {node.attr_float("alpha", 1.6732631921768188F) * gamma, gamma, 1};
}

TileParams celu_params(const Node& node) {
  double alpha = node.attr_float("alpha", 1.0F);
  return {alpha, 1, 1 / alpha};
}

void infer_celu(InferContext& c) {
  c.require(c.node.attr_float("alpha", 1.0F) > 0, "attribute alpha: got ", c.node.attr_float("alpha", 1.0F),
            ", expected a positive number");
  infer_tile(c);
}

/// p[1], p[0] p[2] e^(x p[2]) where not positive; positive x are kept from overflowing there.
template <TileParams (*params)(const Node&)>
void elu_gradient(GradientContext& g) {
  const TileParams p = params(g.node);
  Value* is_positive = g.greater(g.x(), g.zero());
  Value* x = g.where(is_positive, g.zero(), g.x());
  Value* falling = g.mul(g.number(p[0] * p[2]), g.exp(g.mul(x, g.number(p[2]))));
  g.set(0, g.mul(g.dy(), g.where(is_positive, g.number(p[1]), falling)));
}

const RegisterPointwise elu_op{{.name = "Elu",
                                .since = 22,
                                .doc = "X, alpha (e^X - 1) where negative.",
                                .types = types::floats,
                                .gradient = elu_gradient<elu_params>},
                               {.function = &elu_tile, .params = elu_params}};
const RegisterPointwise selu_op{{.name = "Selu",
                                 .since = 22,
                                 .doc = "gamma X, gamma alpha (e^X - 1) where negative.",
                                 .types = types::floats,
                                 .gradient = elu_gradient<selu_params>},
                                {.function = &elu_tile, .params = selu_params}};
const RegisterPointwise celu_op{{.name = "Celu",
                                 .since = 28,
                                 .doc = "X, alpha (e^(X / alpha) - 1) where negative.",
                                 .types = types::floats,
                                 .infer = infer_celu,
                                 .gradient = elu_gradient<celu_params>},
                                {.function = &elu_tile, .params = celu_params}};

}  // namespace
}  // namespace backpass
#endif
