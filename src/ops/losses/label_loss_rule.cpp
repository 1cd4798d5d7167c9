// Gradients of the losses against class labels: SoftmaxCrossEntropyLoss, NegativeLogLikelihoodLoss and the forms of
// both that take ignore_index as an input.
#include "gradient/rule.hpp"
#include "ops/losses/label_loss.hpp"

namespace backpass {
namespace {

constexpr std::size_t kIgnoreInput = 3;

/// What the loss is made of, per label: scores [N, C, ...], everything else [N, 1, ...].
struct Labelled {
  Value* labels;    ///< int64
  Value* counts;    ///< where the label is not ignored; null when all count
  Value* is_label;  ///< [N, C, ...]: at the class that the label names
  Value* weight;    ///< of the label; 0 when ignored
};

Value* ignored_label(GradientContext& g) {
  if (g.has_input(kIgnoreInput)) return g.cast(g.reshape(g.x(kIgnoreInput), {}), DType::int64);
  auto fixed = ignore_attribute(g.node);
  return fixed ? g.b.integer(*fixed) : nullptr;
}

/// 0, 1, ..., C - 1 along axis 1.
Value* classes(GradientContext& g) {
  std::vector<std::int64_t> trailing;
  for (std::int64_t i = 2; i < g.rank(g.x()); ++i) trailing.push_back(i - 1);
  return g.unsqueeze(g.op("Range", {g.b.integer(0), g.extent(g.x(), 1), g.b.integer(1)}), std::move(trailing));
}

Labelled labelled(GradientContext& g) {
  Labelled l;
  l.labels = g.unsqueeze(g.cast(g.x(1), DType::int64), {1});
  Value* ignored = ignored_label(g);
  l.counts = ignored == nullptr ? nullptr : g.op("Not", {g.equal(l.labels, ignored)});
  l.is_label = g.equal(l.labels, classes(g));
  Value* weight = g.one(g.x());
  if (g.has_input(2)) {
    Value* known = l.counts == nullptr ? l.labels : g.where(l.counts, l.labels, g.b.integer(0));
    weight = g.gather(g.x(2), known, 0);
  } else {
    weight = g.expand_like(weight, l.labels);
  }
  l.weight = l.counts == nullptr ? weight : g.where(l.counts, weight, g.zero(g.x()));
  return l;
}

/// The divisor of the mean. Without any label that counts the loss has no value, but its gradient is 0.
Value* total_weight(GradientContext& g, const Labelled& l) {
  Value* total = g.op("ReduceSum", {l.weight}, {{"keepdims", std::int64_t{0}}});
  return g.where(g.equal(total, g.zero(total)), g.one(total), total);
}

/// What flows back to each weighted loss: [N, 1, ...], or a scalar.
Value* loss_gradient(GradientContext& g, const Labelled& l) {
  Value* dy = g.cast_like(g.dy(), g.x());
  switch (loss_reduction(g.node)) {
    case LossReduction::none:
      return g.unsqueeze(dy, {1});
    case LossReduction::sum:
      return dy;
    case LossReduction::mean:
      return g.div(dy, total_weight(g, l));
  }
  return dy;
}

/// The unweighted loss of a label, minus the mean where that is the loss: what more weight would do.
void set_weights(GradientContext& g, const Labelled& l, Value* log_prob, Value* flow) {
  if (!g.wants(2)) return;
  Value* zero = g.zero(g.x());
  Value* losses = g.neg(g.sum(g.where(l.is_label, log_prob, zero), {1}, true));
  if (loss_reduction(g.node) == LossReduction::mean) losses = g.sub(losses, g.cast_like(g.y(), g.x()));
  Value* flows = g.mul(flow, losses);
  if (l.counts != nullptr) flows = g.where(l.counts, flows, zero);
  std::vector<std::int64_t> others{0};
  for (std::int64_t i = 2; i < g.rank(g.x()); ++i) others.push_back(i);
  g.set(2, g.sum(g.where(l.is_label, flows, zero), std::move(others), false));
}

/// The log probabilities as the node computes them; they become an output of it.
Value* stored_log_prob(GradientContext& g) {
  if (g.node.output(1) != nullptr) return g.y(1);
  Node* forward = g.y()->producer;
  Value* log_prob = g.b.graph.add_value(g.y()->name + "_log_prob", g.x()->type);
  forward->outputs.resize(2);
  forward->outputs[1] = log_prob;
  log_prob->producer = forward;
  return log_prob;
}

/// What flows back to the log probabilities themselves, added.
Value* with_log_prob_gradient(GradientContext& g, Value* dx, Value* log_prob) {
  if (!g.has_dy(1)) return dx;
  Value* more = g.sub(g.dy(1), g.mul(g.exp(log_prob), g.sum(g.dy(1), {1}, true)));
  return dx == nullptr ? more : g.add(dx, more);
}

}  // namespace

void cross_entropy_gradient(GradientContext& g) {
  Value* log_prob = g.node.output(1) != nullptr ? g.y(1) : g.op("LogSoftmax", {g.x()}, {{"axis", std::int64_t{1}}});
  if (!g.has_dy(0)) {
    g.set(0, with_log_prob_gradient(g, nullptr, log_prob));
    if (g.has_input(2)) g.set_zero(2);
    return;
  }
  const Labelled l = labelled(g);
  Value* flow = loss_gradient(g, l);
  Value* weighted = g.mul(flow, l.weight);
  Value* target = g.where(l.is_label, g.one(log_prob), g.zero(log_prob));
  g.set(0, with_log_prob_gradient(g, g.mul(weighted, g.sub(g.exp(log_prob), target)), log_prob));
  set_weights(g, l, log_prob, flow);
}

void nll_gradient(GradientContext& g) {
  const Labelled l = labelled(g);
  Value* flow = loss_gradient(g, l);
  g.set(0, g.where(l.is_label, g.neg(g.mul(flow, l.weight)), g.zero(g.x())));
  set_weights(g, l, g.x(), flow);
}

void cross_entropy_fused_gradient(GradientContext& g) {
  if (g.wants(2) || !g.has_dy(0)) return cross_entropy_gradient(g);
  const bool is_internal = g.node.op == "SoftmaxCrossEntropyLossInternal";
  AttributeList attributes;
  for (const char* key : {"reduction", "ignore_index"}) {
    if (auto it = g.node.attributes.find(key); it != g.node.attributes.end()) attributes.push_back(*it);
  }
  Value* log_prob = stored_log_prob(g);
  std::vector<Value*> inputs{g.cast_like(g.dy(), g.x()), log_prob, g.x(1)};
  if (g.has_input(2) || g.has_input(kIgnoreInput)) inputs.push_back(g.node.input(2));
  if (g.has_input(kIgnoreInput)) inputs.push_back(g.x(kIgnoreInput));
  Value* dx = g.op(is_internal ? "SoftmaxCrossEntropyLossInternalGrad" : "SoftmaxCrossEntropyLossGrad",
                   std::move(inputs), attributes, "com.microsoft");
  g.set(0, with_log_prob_gradient(g, dx, log_prob));
  if (g.has_input(2)) g.set_zero(2);
}

}  // namespace backpass
