#include "ops/random/dropout_rule.hpp"

#include "gradient/forward_output.hpp"
#include "ops/random/dropout.hpp"

namespace backpass::dropout {
namespace {

/// Without training_mode, or with a constant false, it is the identity.
bool is_identity(const Node& node) {
  const Value* training = node.input(2);
  return training == nullptr || (training->constant && !training->constant->as<bool>()[0]);
}

Value* mask_of(GradientContext& g) { return forward_output(g, 1, Type::tensor(DType::boolean, g.x(0)->type.shape)); }

/// y = mask * x / (1 - ratio): the elements that are kept grow with the ratio; which ones they are is left to chance.
void set_ratio(GradientContext& g) {
  if (!g.wants(1)) return;
  if (is_identity(g.node)) return g.set_zero(1);
  Value* ratio = g.cast_like(g.x(1), g.dy());
  Value* growth = g.div(g.sum(g.reshape(g.mul(g.dy(), g.y()), {-1}), {0}, false), g.sub(g.one(), ratio));
  g.set(1, g.cast_like(g.reshape_like(g.where(g.x(2), growth, g.zero()), g.x(1)), g.x(1)));
}

}  // namespace

void gradient(GradientContext& g) {
  set_ratio(g);
  if (is_identity(g.node)) return g.set(0, g.dy());
  Value* ratio = g.has_input(1) ? g.cast_like(g.x(1), g.dy()) : g.number(kDefaultRatio);
  Value* scale = g.where(g.x(2), g.reciprocal(g.sub(g.one(), ratio)), g.one());
  g.set(0, g.where(mask_of(g), g.mul(g.dy(), scale), g.zero()));
}

void fused_gradient(GradientContext& g) {
  if (is_identity(g.node)) return gradient(g);
  set_ratio(g);
  g.set(0, g.op("DropoutGrad", {g.dy(), mask_of(g), g.node.input(1), g.node.input(2)}, {}, "com.microsoft"));
}

}  // namespace backpass::dropout
