// Gradient rules of Slice.
#pragma once

namespace backpass {

class GradientContext;

void slice_gradient(GradientContext& g);
void slice_fused_gradient(GradientContext& g);

}  // namespace backpass
