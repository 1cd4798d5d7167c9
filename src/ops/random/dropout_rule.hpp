// Gradient of operators that drop elements of their first input: inputs (data, ratio, training_mode), outputs (y,
// mask).
#pragma once

#include "gradient/rule.hpp"

namespace backpass::dropout {

void gradient(GradientContext& g);

/// By DropoutGrad and the mask.
void fused_gradient(GradientContext& g);

}  // namespace backpass::dropout
