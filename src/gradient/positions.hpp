// For rules of operators that only move elements: the same operator, applied to the position of every element, tells
// where each element of the result came from.
#pragma once

#include <vector>

#include "gradient/rule.hpp"

namespace backpass {

/// The position of every element of `a` in memory order: int64, of the shape of `a`.
Value* positions_of(GradientContext& g, Value* a);

/// The gradient of x where y[i] = x[positions[i]]: elements of dy added at their positions into zeros of x's shape.
Value* add_at(GradientContext& g, Value* positions, Value* dy, Value* x);

/// dx for y = Gather(x, indices, axis): slices of dy added at their indices into zeros of x's shape.
Value* add_slices_at(GradientContext& g, Value* indices, Value* dy, Value* x, std::int64_t axis);

/// A 1-D int64 tensor of scalars.
Value* vector_of(GradientContext& g, const std::vector<Value*>& scalars);

/// The attributes of a node, to write it once more with other inputs.
AttributeList attributes_of(const Node& node);

/// Numbers 0 ... count-1, count being a 0-D int64.
Value* count_up(GradientContext& g, Value* count);

}  // namespace backpass
