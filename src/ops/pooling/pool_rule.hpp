// Gradients of pooling, in standard operators.
#pragma once

#include "gradient/rule.hpp"

namespace backpass {

void max_pool_gradient(GradientContext& g);
void max_pool_fused_gradient(GradientContext& g);
void average_pool_gradient(GradientContext& g);
void average_pool_fused_gradient(GradientContext& g);
void lp_pool_gradient(GradientContext& g);

}  // namespace backpass
