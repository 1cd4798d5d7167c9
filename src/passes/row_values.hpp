// Rows of values that are computed whole: taken from them by their places.
#pragma once

#include "graph/builder.hpp"
#include "passes/row_layout.hpp"
#include "passes/row_selection.hpp"

namespace backpass {

/// [chosen rows, kept axes] of a value with all its rows. `is_part`: it has only some of the factors of rows.
Value* take_rows(Builder& b, Value* v, const RowLayout& layout, bool is_part, Value* places, ExtentValues& extents);

/// [rows, kept axes]: all of them, in the order of their places.
Value* rows_first(Builder& b, Value* v, const RowLayout& layout, ExtentValues& extents);

/// Numbers of rows in a tensor that has them in the order of its axes, or only some of their factors.
Value* local_places(Builder& b, const std::vector<RowFactor>& factors, Value* places, ExtentValues& extents);

/// The same elements under another shape; the first extent stays, all others are known.
Value* with_kept(Builder& b, Value* packed, const Shape& kept);

/// A packed operand, or one without rows, so that it is stretched to packed results with `out`.
Value* aligned(Builder& b, Value* v, const RowLayout& layout, const RowLayout& out, bool has_rows);

/// From the first in a tensor of places to the last: the way round of RowLayout's order.
std::vector<RowFactor> by_stride(std::vector<RowFactor> factors);

/// Whether `take_rows` knows how, and extents are at hand.
bool can_take_rows(const RowLayout& layout, const ExtentValues& extents);

/// Whether all axes of rows come before all others, in whatever order.
bool rows_lead(const RowLayout& layout);

}  // namespace backpass
