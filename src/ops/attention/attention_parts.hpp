// Pieces that attention operators written in standard operators share.
#pragma once

#include "gradient/rule.hpp"

namespace backpass::attention_parts {

/// One extent as 1-D int64, to be joined into a shape.
Value* extent(GradientContext& g, Value* v, std::int64_t axis);

/// The last axis as two: `outer` of equal parts.
Value* split_last_axis(GradientContext& g, Value* v, std::int64_t outer);
/// The last two axes as one.
Value* join_last_axes(GradientContext& g, Value* v);

/// [batch, length, heads * size] as [batch, heads, length, size].
Value* to_heads(GradientContext& g, Value* v, std::int64_t heads);

/// [batch, key heads, ...] with each head repeated, so that there are as many as `query` has on axis 1.
Value* repeat_heads(GradientContext& g, Value* v, Value* query);

/// 1 / sqrt(last extent of v), unless the node names a scale.
Value* scale_for(GradientContext& g, Value* v);

}  // namespace backpass::attention_parts
