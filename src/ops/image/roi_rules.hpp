// Gradients of RoiAlign and MaxRoiPool with respect to the feature map, in standard operators.
#pragma once

#include "gradient/rule.hpp"

namespace backpass {

void roi_align_gradient(GradientContext& g);
void max_roi_pool_gradient(GradientContext& g);

}  // namespace backpass
