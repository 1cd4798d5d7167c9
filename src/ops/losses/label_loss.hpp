// What the losses against class labels have in common: attributes, shape rule, layout.
#pragma once

#include <optional>
#include <string>

#include "graph/op.hpp"
#include "ops/losses/loss.hpp"

namespace backpass {

/// Attribute `reduction`: "none", "sum" or "mean" (default).
LossReduction loss_reduction(const Node& node);

/// Attribute `ignore_index`, if given.
std::optional<std::int64_t> ignore_attribute(const Node& node);

/// Inputs scores [N, C, d...], labels [N, d...], weights [C] (may be absent) starting at `first`. Sets output 0 (a
/// scalar or one value per label); output 1 (log probabilities) when it exists.
void infer_label_loss(InferContext& c, DType loss_type);

/// Layout of the scores in input `scores`; fails unless input `labels` fits.
LossShape loss_shape(const PrepareContext& c, std::size_t scores, std::size_t labels);

/// Where `ignore_index` comes from: attribute, or a scalar input that is read at each run.
struct IgnoreIndex {
  std::optional<std::int64_t> fixed;
  std::optional<std::size_t> input;
  DType dtype = DType::int64;

  static IgnoreIndex of(const PrepareContext& c, std::optional<std::size_t> input);
  std::optional<std::int64_t> read(const KernelArgs& a) const;
};

/// Kernel of the loss whose unweighted values are log(sum(exp(scores))) - score of the label (`from_scores`), or minus
/// the score of the label.
Kernel prepare_label_loss(PrepareContext& c, bool from_scores, std::optional<std::size_t> ignore_input);

// Rules of their gradients (label_loss_rule.cpp); weights are differentiable too.
void cross_entropy_gradient(GradientContext& g);
/// By SoftmaxCrossEntropyLossGrad; the log probabilities become an output of the forward node.
void cross_entropy_fused_gradient(GradientContext& g);
void nll_gradient(GradientContext& g);
// Of those gradients themselves (label_loss_grad_rule.cpp).
void cross_entropy_second_gradient(GradientContext& g);
void internal_cross_entropy_second_gradient(GradientContext& g);

}  // namespace backpass
