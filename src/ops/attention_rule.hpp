// The derivative of Attention.
#pragma once

#include "gradient/rule.hpp"

namespace backpass {

/// Through softmax(Q K' scale) V written out in standard operators, with everything the operator does to the scores.
void attention_gradient(GradientContext& g);

}  // namespace backpass
