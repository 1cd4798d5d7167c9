// The derivative of BatchNormalization (and BatchNormInternal) with respect to X, scale and B; in inference also to
// the given statistics. Running statistics are kept outside the graph that is differentiated: nothing flows back from
// them.
#pragma once

#include "gradient/rule.hpp"

namespace backpass {

void batch_norm_gradient(GradientContext& g);
/// In training the forward node becomes BatchNormInternal and the gradient BatchNormalizationGrad.
void batch_norm_fused_gradient(GradientContext& g);

}  // namespace backpass
