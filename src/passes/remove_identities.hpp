// Nodes that return their input unchanged are bypassed.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// Identity, Cast to the same type, Transpose by the identity permutation, Expand and Reshape to the same shape.
int remove_identities(Graph& graph, std::vector<std::string>& log);

}  // namespace backpass
