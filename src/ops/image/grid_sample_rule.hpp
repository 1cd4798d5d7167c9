// Gradient of GridSample, in standard operators.
#pragma once

#include "gradient/rule.hpp"

namespace backpass {

void grid_sample_gradient(GradientContext& g);

}  // namespace backpass
