// Which pointwise nodes can run as one tile program.
#pragma once

#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// True for a constant of one element, which a program holds in itself.
inline bool is_immediate(const Value& v) { return v.constant && v.constant->size() == 1; }

/// Disjoint groups of at least two connected pointwise nodes of one output shape. Replacing each group by a single node
/// leaves the graph acyclic.
std::vector<std::vector<Node*>> find_tile_groups(Graph& graph);

}  // namespace backpass
