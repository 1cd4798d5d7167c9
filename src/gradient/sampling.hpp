// For rules of operators that read a tensor [N, C, ...] between its elements: GridSample, DeformConv, RoiAlign.
#pragma once

#include <vector>

#include "gradient/rule.hpp"

namespace backpass {

/// What is read along one axis of the tensor, for each of P points of each of N images.
struct AxisReads {
  Value* index;        ///< [N, P, count] int64, each inside the axis
  Value* weight;       ///< [N, P, count], zero where nothing is read
  std::int64_t count;  ///< how many elements each point is made of
};

/// An extent as a number of the element type of `like`, 0-D.
Value* length_of(GradientContext& g, Value* a, std::int64_t axis, const Value* like);

/// low <= a < high for int64 tensors.
Value* is_within(GradientContext& g, Value* a, Value* low, Value* high);

/// a clamped to [0, extent), int64.
Value* clamped(GradientContext& g, Value* a, Value* extent);

/// [N, C, ...] as [N * elements of a channel, C]: one row per place.
Value* rows_of(GradientContext& g, Value* x);

/// The other way round: rows of what has the shape of x.
Value* from_rows(GradientContext& g, Value* rows, Value* x);

/// The weighted sums of what is read along all axes of x: [N, P, C].
Value* interpolated(GradientContext& g, Value* x, const std::vector<AxisReads>& axes);

}  // namespace backpass
