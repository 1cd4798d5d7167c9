// Common subexpressions: nodes with the same operator, inputs and attributes compute the same thing once.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// Random operators and nodes with subgraphs are left alone. Returns the number of nodes removed.
int merge_duplicates(Graph& graph, std::vector<std::string>& log);

}  // namespace backpass
