// What an optimizer does to weights, and the settings of each.
#pragma once

#include <cstdint>
#include <limits>

namespace backpass {

enum class Algorithm : std::uint8_t {
  sgd,
  adam,  ///< AdamW is this with a weight_decay
  lamb,
};

/// Settings of one weight. docs/optimizers.md has the formulas.
struct WeightSettings {
  double rate_scale = 1;  ///< times the learning rate of the step
  double alpha = 0.9;     ///< decay of the first moment
  double beta = 0.999;    ///< decay of the second moment
  double epsilon = 1e-8;
  double weight_decay = 0;
  bool correct_bias = true;   ///< of moments, which start at 0
  bool decays_after = false;  ///< adam: the weight decays after its step (as Hugging Face did), else before (as torch)
  double max_norm = 1;        ///< of all gradients together, where they are clipped
  double ratio_min = -std::numeric_limits<double>::infinity();  ///< lamb: bounds of norm of weight / norm of step
  double ratio_max = std::numeric_limits<double>::infinity();
  bool decays_gradient = false;  ///< weight_decay * weight is added to the gradient (torch.optim.Adam); sgd: always

  bool operator==(const WeightSettings&) const = default;
};

}  // namespace backpass
