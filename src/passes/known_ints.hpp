// Shape arithmetic whose result follows from the extents alone is read off instead of computed.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// Small integer tensors that inference knows as numbers become constants (`Gather(Shape(x), -1)` where the last extent
/// of x is fixed); those known as the same expressions as an earlier one are replaced by it, so that what is made of
/// them (the causal mask of every block of a decoder) can be recognised as equal. Returns the number of uses
/// redirected.
int known_ints(Graph& graph, std::vector<std::string>& log);

}  // namespace backpass
