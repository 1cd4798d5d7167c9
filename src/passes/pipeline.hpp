// The rewriting passes, in order. Each pass is one file; each says what it did.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// Rewrites the graph and its subgraphs so that less is computed. Returns one line per change.
std::vector<std::string> optimize(Graph& graph);

}  // namespace backpass
