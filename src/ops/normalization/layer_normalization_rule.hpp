// Derivatives of LayerNormalization and its relatives without centering.
#pragma once

#include "gradient/rule.hpp"

namespace backpass {

void layer_norm_gradient(GradientContext& g);
void layer_norm_fused_gradient(GradientContext& g);  ///< by LayerNormalizationGrad

/// RMSNormalization and SimplifiedLayerNormalization.
void rms_norm_gradient(GradientContext& g);
void rms_norm_fused_gradient(GradientContext& g);  ///< by SimplifiedLayerNormalizationGrad

}  // namespace backpass
