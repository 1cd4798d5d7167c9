// Nodes whose inputs are all constants are computed once, at load time.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// Folds results of up to 64 MiB unless they are larger than what they are computed from by more than 1 MiB (an Expand
/// of a scalar is cheaper to redo than to keep). Returns the number of nodes removed.
int fold_constants(Graph& graph, std::vector<std::string>& log);

}  // namespace backpass
