// Gradient rules of If.
#pragma once

namespace backpass {

class GradientContext;

void if_gradient(GradientContext& g);
void if_fused_gradient(GradientContext& g);

}  // namespace backpass
