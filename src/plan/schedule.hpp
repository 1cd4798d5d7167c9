// The order in which nodes run.
#pragma once

#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// Whether the extents of what the node makes depend on data, and so are known only once it has run.
bool finds_size(const Node& node);

/// The nodes in an order to run them in: that of the graph, except that those which find a size come together where
/// they do not depend on each other, everything that follows can then be planned at once, and that those which write
/// over inputs of the graph (graph/overwriting.hpp) come as soon as nobody reads these any more.
std::vector<const Node*> order_to_run(const Graph& graph);

}  // namespace backpass
