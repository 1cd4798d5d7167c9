// Shapes of values that may become smaller: they are made from the extents of the graph's inputs instead.
#pragma once

#include "graph/graph.hpp"

namespace backpass {

/// Whether every extent that this Shape gives is a number, or that of an input of the graph.
bool can_free_shape(const Graph& graph, const Node& shape);
/// Whether the node reads v, once, and nobody else does but for its shape, which can be had elsewhere.
bool is_needed_by(const Graph& graph, const Value& v, const Node& reader);
/// Makes what it gave without what it read. The node goes.
void free_shape(Graph& graph, Node& shape);

}  // namespace backpass
