// The derivative of Scan.
#pragma once

#include "gradient/rule.hpp"

namespace backpass {

/// The forward node also hands out the states each step began with; a second Scan then walks the steps backwards with
/// the gradient of the body, carrying the gradients of the states and summing those of what the body captures.
void scan_gradient(GradientContext& g);

}  // namespace backpass
