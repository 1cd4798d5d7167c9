// Gradient rules of Pad and CenterCropPad.
#pragma once

namespace backpass {

class GradientContext;

void pad_gradient(GradientContext& g);
void center_crop_pad_gradient(GradientContext& g);

}  // namespace backpass
