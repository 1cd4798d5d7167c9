// Gradient of Resize, in standard operators.
#pragma once

#include "gradient/rule.hpp"

namespace backpass {

void resize_gradient(GradientContext& g);

}  // namespace backpass
