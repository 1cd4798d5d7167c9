// Gradient of DeformConv, in standard operators.
#pragma once

#include "gradient/rule.hpp"

namespace backpass {

void deform_conv_gradient(GradientContext& g);

}  // namespace backpass
