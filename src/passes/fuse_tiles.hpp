// Pointwise and row-reducing nodes that work on the same shape become one tile program.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// Replaces groups of connected nodes that work on one shape (proved equal, whatever symbols stand for) by `Tile` nodes
/// of domain "backpass": pointwise nodes, sums, means, maxima and minima over the last axis, and pointwise nodes on
/// what those leave. Operands may broadcast; intermediate values that are needed elsewhere become further outputs.
/// Integer vectors, which carry shapes, are left alone. Returns how many nodes were absorbed.
int fuse_tiles(Graph& graph, std::vector<std::string>& log);

}  // namespace backpass
