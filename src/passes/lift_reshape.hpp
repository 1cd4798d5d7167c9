// A Reshape that makes the first axes one (rows of all sequences) moves in front of what works on each row alone, so
// that a selection of rows behind it can go on.
#pragma once

#include "graph/graph.hpp"

namespace backpass {

/// Whether the node could compute its result with its first axes as one, from inputs that have them as one, too.
bool works_on_rows(const Node& node, std::size_t axes);

/// How many axes of its input the node makes one; 0 when it does something else, or the extents of the others are not
/// numbers.
std::size_t merged_axes(const Node& reshape);

/// [-1, ...]: x with its first axes as one. Null when that cannot be said by numbers.
Value* with_rows(Graph& graph, Value* x, std::size_t axes, const Node* before);

/// Moves it in front of the node that gives its input, if nobody else reads that. False: nothing changed.
bool lift_reshape(Graph& graph, Node& reshape);

}  // namespace backpass
