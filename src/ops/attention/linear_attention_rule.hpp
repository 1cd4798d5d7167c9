// The derivative of LinearAttention.
#pragma once

#include "gradient/rule.hpp"

namespace backpass {

/// Through the operator written as a Scan over the tokens.
void linear_attention_gradient(GradientContext& g);

}  // namespace backpass
