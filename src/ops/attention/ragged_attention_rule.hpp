// The derivative of RaggedAttention.
#pragma once

#include "gradient/rule.hpp"

namespace backpass {

/// Written out in standard operators, each query with a copy of the keys of its batch item.
void ragged_attention_gradient(GradientContext& g);

/// By RaggedAttentionGrad, which holds neither copies nor scores.
void ragged_attention_fused_gradient(GradientContext& g);

}  // namespace backpass
