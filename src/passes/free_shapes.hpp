// Shapes of values that may become smaller: they are made from the extents of the graph's inputs instead.
#pragma once

#include "graph/graph.hpp"

namespace backpass {

/// Whether every extent that this Shape gives is a number, or that of an input of the graph.
bool can_free_shape(const Graph& graph, const Node& shape);
/// Makes what it gave without what it read. The node goes.
void free_shape(Graph& graph, Node& shape);

}  // namespace backpass
