// Attributes of AdamWOptimizer, and of SGDUpdate and AdamWUpdate.
#pragma once

#include "graph/graph.hpp"
#include "ops/optimizers/exact_attribute.hpp"
#include "ops/optimizers/optimizer.hpp"

namespace backpass {

inline WeightSettings adamw_attributes(const Node& node) {
  WeightSettings settings;
  settings.alpha = exact_attribute(node, "alpha", 0.9F);
  settings.beta = exact_attribute(node, "beta", 0.999F);
  settings.epsilon = exact_attribute(node, "epsilon", 1e-8F);
  settings.weight_decay = exact_attribute(node, "weight_decay", 1e-2F);
  settings.correct_bias = node.attr_int("correct_bias", 1) != 0;
  const std::int64_t mode = node.attr_int("adam_mode", 0);
  if (mode != 0 && mode != 1) fail(node.label(), " adam_mode: got ", mode, ", expected 0 or 1");
  settings.decays_after = mode == 1;
  settings.rate_scale = exact_attribute(node, "rate_scale", 1);
  settings.decays_gradient = node.attr_int("decays_gradient", 0) != 0;
  return settings;
}

inline WeightSettings sgd_attributes(const Node& node) {
  WeightSettings settings;
  settings.rate_scale = exact_attribute(node, "rate_scale", 1);
  settings.weight_decay = exact_attribute(node, "weight_decay", 0);
  return settings;
}

}  // namespace backpass
