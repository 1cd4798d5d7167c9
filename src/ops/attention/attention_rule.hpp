// The derivative of Attention.
#pragma once

#include "gradient/rule.hpp"

namespace backpass {

/// Through softmax(Q K' scale) V written out in standard operators, with everything the operator does to the scores.
void attention_gradient(GradientContext& g);

/// By AttentionGrad, which does not hold the scores, where only Q, K and V of this run take part.
void attention_fused_gradient(GradientContext& g);

}  // namespace backpass
