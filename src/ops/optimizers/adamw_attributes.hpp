// Attributes of AdamWOptimizer, and of AdamWUpdate.
#pragma once

#include "graph/graph.hpp"
#include "ops/optimizers/optimizer.hpp"

namespace backpass {

/// Rate and step come with the data.
inline AdamW adamw_attributes(const Node& node) {
  AdamW settings;
  settings.alpha = node.attr_float("alpha", 0.9F);
  settings.beta = node.attr_float("beta", 0.999F);
  settings.epsilon = node.attr_float("epsilon", 1e-8F);
  settings.weight_decay = node.attr_float("weight_decay", 1e-2F);
  settings.correct_bias = node.attr_int("correct_bias", 1) != 0;
  const std::int64_t mode = node.attr_int("adam_mode", 0);
  if (mode != 0 && mode != 1) fail(node.label(), " adam_mode: got ", mode, ", expected 0 or 1");
  settings.decay_first = mode == 0;
  return settings;
}

}  // namespace backpass
