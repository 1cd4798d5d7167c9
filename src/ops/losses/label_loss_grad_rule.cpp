// SoftmaxCrossEntropyLossGrad and SoftmaxCrossEntropyLossInternalGrad written out in standard operators: what comes
// before a loss in a training graph can so be differentiated once more.
#include "gradient/activity.hpp"
#include "gradient/composite.hpp"
#include "gradient/positions.hpp"
#include "gradient/standardize_rule.hpp"
#include "ops/losses/label_loss.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kDy, kLogProb, kLabels, kWeights };

Value* ignored_label(GradientContext& g, std::size_t bias) {
  const bool is_input = bias == kWeights + 2 && g.has_input(kWeights + 1);  // which comes before the bias
  if (is_input) return g.cast(g.reshape(g.x(kWeights + 1), {}), DType::int64);
  auto fixed = ignore_attribute(g.node);
  return fixed ? g.b.integer(*fixed) : nullptr;
}

/// The weight of each label, [N, 1, ...]: 0 where it is ignored.
Value* label_weights(GradientContext& g, Value* log_prob, Value* labels, Value* ignored) {
  Value* counts = ignored == nullptr ? nullptr : g.op("Not", {g.equal(labels, ignored)});
  Value* weight = g.one(log_prob);
  if (g.has_input(kWeights)) {
    Value* known = counts == nullptr ? labels : g.where(counts, labels, g.b.integer(0));
    weight = g.gather(widened(g, g.x(kWeights)), known, 0);
  } else {
    weight = g.expand_like(weight, labels);
  }
  return counts == nullptr ? weight : g.where(counts, weight, g.zero(log_prob));
}

Value* written(GradientContext& g, std::size_t bias) {
  Value* log_prob = widened(g, g.x(kLogProb));
  Value* labels = g.unsqueeze(g.cast(g.x(kLabels), DType::int64), {1});
  Value* weight = label_weights(g, log_prob, labels, ignored_label(g, bias));
  Value* dy = g.cast_like(g.x(kDy), log_prob);
  const LossReduction reduction = loss_reduction(g.node);
  dy = reduction == LossReduction::none ? g.unsqueeze(dy, {1}) : g.reshape(dy, {});
  if (reduction == LossReduction::mean) {
    Value* total = g.op("ReduceSum", {weight}, {{"keepdims", std::int64_t{0}}});
    dy = g.div(dy, g.where(g.equal(total, g.zero(total)), g.one(total), total));
  }
  std::vector<std::int64_t> trailing;
  for (std::int64_t i = 2; i < g.rank(log_prob); ++i) trailing.push_back(i - 1);
  Value* classes = g.unsqueeze(count_up(g, g.extent(log_prob, 1)), std::move(trailing));
  Value* target = g.where(g.equal(labels, classes), g.one(log_prob), g.zero(log_prob));
  Value* dx = g.mul(g.mul(weight, dy), g.sub(g.exp(log_prob), target));
  dx = g.cast_like(dx, g.node.outputs[0]);
  return g.has_input(bias) ? g.add(dx, g.x(bias)) : dx;
}

template <std::size_t bias>
std::vector<Value*> write(Builder& b, const Node& node) {
  const ValueSet none;
  GradientContext g(b, node, {}, none);
  return {written(g, bias)};
}

}  // namespace

void cross_entropy_second_gradient(GradientContext& g) { composite_gradient(g, write<kWeights + 1>); }

void internal_cross_entropy_second_gradient(GradientContext& g) { composite_gradient(g, write<kWeights + 2>); }

}  // namespace backpass
