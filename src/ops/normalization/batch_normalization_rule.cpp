#include "ops/normalization/batch_normalization_rule.hpp"

#include "gradient/forward_output.hpp"
#include "gradient/standardize_rule.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

bool is_training(const Node& node) { return node.op == "BatchNormInternal" || node.attr_int("training_mode", 0) != 0; }

/// Sums over what a channel covers, as the parameter it belongs to; `copy`: the output that is the parameter itself.
void set_parameter(GradientContext& g, std::size_t i, Value* d, std::int64_t rank, std::size_t copy = 0) {
  Value* sum = g.sum(d, axes_but_channels(rank), false);
  if (rank == 1) sum = g.unsqueeze(sum, {0});
  if (copy != 0 && g.has_dy(copy)) sum = g.add(sum, g.cast_like(g.dy(copy), sum));
  g.set(i, g.cast_like(sum, g.x(i)));
}

/// Statistics that are outputs, and the running ones they are made of. Outputs 1 and 2 are
/// momentum * running + (1 - momentum) * batch, outputs 3 and 4 (BatchNormInternal) the batch's mean and inverse.
/// Returns what they add to the gradient of x, null for nothing.
Value* statistics_gradient(GradientContext& g, const Standardized& s, std::int64_t rank) {
  const double momentum = g.node.attr_float("momentum", 0.9F);
  auto arriving = [&](std::size_t k) { return per_channel(g, g.cast_like(g.dy(k), s.z), rank); };
  Value* total = nullptr;
  auto add = [&](Value* part) { total = total == nullptr ? part : g.add(total, part); };
  for (std::size_t k : {1, 2}) {
    if (g.has_dy(k)) {
      g.set(k + 2, g.cast_like(g.mul(g.dy(k), g.number(momentum, g.dy(k))), g.x(k + 2)));
    } else {
      g.set_zero(k + 2);
    }
  }
  if (g.has_dy(1)) add(mean_gradient(g, s, g.mul(arriving(1), g.number(1 - momentum, s.z))));
  if (g.has_dy(2)) add(variance_gradient(g, s, g.mul(arriving(2), g.number(1 - momentum, s.z))));
  if (g.has_dy(3)) add(mean_gradient(g, s, arriving(3)));
  if (g.has_dy(4)) add(inverse_gradient(g, s, arriving(4)));
  return total;
}

void training_gradient(GradientContext& g, double epsilon) {
  const std::int64_t rank = g.rank(g.x(0));
  Standardized s = standardize(g, g.x(0), axes_but_channels(rank), epsilon, true);
  Value* dy = widened(g, g.dy(0));
  Value* scale = per_channel(g, g.cast_like(g.x(1), s.z), rank);
  Value* dx = standardize_gradient(g, s, g.mul(dy, scale));
  if (Value* more = statistics_gradient(g, s, rank)) dx = g.add(dx, more);
  g.set(0, g.cast_like(dx, g.x(0)));
  set_parameter(g, 1, g.mul(dy, s.z), rank);
  set_parameter(g, 2, dy, rank);
}

void inference_gradient(GradientContext& g, double epsilon) {
  const std::int64_t rank = g.rank(g.x(0));
  Value* x = widened(g, g.x(0));
  Value* dy = widened(g, g.dy(0));
  auto parameter = [&](std::size_t i) { return per_channel(g, g.cast_like(g.x(i), x), rank); };
  Value* inverse = g.reciprocal(g.sqrt(g.add(parameter(4), g.number(epsilon, x))));
  Value* z = g.mul(g.sub(x, parameter(3)), inverse);
  Value* dx = g.mul(dy, g.mul(parameter(1), inverse));
  g.set(0, g.cast_like(dx, g.x(0)));
  set_parameter(g, 1, g.mul(dy, z), rank);
  set_parameter(g, 2, dy, rank);
  if (g.wants(3)) set_parameter(g, 3, g.neg(dx), rank, 1);
  if (g.wants(4)) set_parameter(g, 4, g.mul(g.mul(dx, z), g.mul(inverse, g.number(-0.5, x))), rank, 2);
}

/// The forward node with the batch's own mean and inverse deviation as outputs 3 and 4.
void become_internal(GradientContext& g) {
  Node& node = forward_node(g);
  node.op = "BatchNormInternal";
  node.domain = "com.microsoft";
  node.def = find_op(node.domain, node.op);
}

}  // namespace

void batch_norm_gradient(GradientContext& g) {
  const double epsilon = g.node.attr_float("epsilon", 1e-5F);
  if (is_training(g.node)) {
    training_gradient(g, epsilon);
  } else {
    inference_gradient(g, epsilon);
  }
}

void batch_norm_fused_gradient(GradientContext& g) {
  const bool is_plain = g.has_dy(0) && !g.has_dy(1) && !g.has_dy(2) && !g.has_dy(3) && !g.has_dy(4);
  if (!is_training(g.node) || !is_plain || g.rank(g.x(0)) < 2) return batch_norm_gradient(g);
  become_internal(g);
  const Type statistic = Type::tensor(g.x(3)->type.dtype, Shape{g.x(0)->type.shape->at(1)});
  Value* mean = forward_output(g, 3, statistic);
  Value* inverse = forward_output(g, 4, statistic);
  std::vector<Value*> d = g.b.ops("BatchNormalizationGrad", {g.dy(0), g.x(0), g.x(1), mean, inverse}, 3,
                                  {{"epsilon", g.node.attr_float("epsilon", 1e-5F)}}, "com.microsoft");
  for (std::size_t i = 0; i < d.size(); ++i) g.set(i, g.cast_like(d[i], g.x(i)));
  g.set_zero(3);
  g.set_zero(4);
}

}  // namespace backpass
