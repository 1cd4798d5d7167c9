// Other ways to select along an axis, written as those that can move (passes/selection.hpp). Only where the tensor
// comes from a node that they might move in front of.
#pragma once

#include "graph/graph.hpp"

namespace backpass {

/// Compress, a Slice whose bounds are not known, a Slice along several axes, GatherND with one place of each batch.
/// Returns whether anything changed.
bool rewrite_selections(Graph& graph);

/// Readers that take parts of an axis, Split among them, read from what they take together where that is less than all
/// of it and pays. Returns whether anything changed.
bool join_selections(Graph& graph);

}  // namespace backpass
