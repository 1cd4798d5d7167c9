// Pointwise nodes that work on the same shape become one tile program.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// Replaces groups of connected pointwise nodes, all of one output shape (proved equal, whatever symbols stand for), by
/// `Tile` nodes of domain "backpass". Operands may broadcast; intermediate values that are needed elsewhere become
/// further outputs. Integer vectors, which carry shapes, are left alone. Returns how many nodes were absorbed.
int fuse_tiles(Graph& graph, std::vector<std::string>& log);

}  // namespace backpass
