// Which operators treat every row of a tensor alike and by itself.
#pragma once

#include <optional>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// By axis: whether rows lie along it. They lie along one or several, always in the same order.
using RowAxes = std::vector<bool>;

/// Axes that an attribute, or a constant input, names, counted from the front; nullopt: not known.
std::optional<std::vector<std::size_t>> named_axes(const Value* axes, std::size_t rank);

/// Where rows lie in the result of a node with one operand that has any, its first: softmax and reductions along other
/// axes, new axes, transposition. nullopt: rows mix, or it is not known.
std::optional<RowAxes> rows_behind(const Node& node, const RowAxes& rows);

/// Whether a reduction is one over all rows.
bool sums_rows(const Node& node, const RowAxes& rows);

}  // namespace backpass
