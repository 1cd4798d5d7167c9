// The derivative of FlexAttention.
#pragma once

#include "gradient/rule.hpp"

namespace backpass {

/// Through the operator written out, its bodies in their places.
void flex_attention_gradient(GradientContext& g);

}  // namespace backpass
