// Reshapes whose target is computed from extents of their own input get a constant target with 0 and -1 instead.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// `Reshape(x, Concat(Gather(Shape(x), 0), 12, -1))` becomes `Reshape(x, [0, 12, -1])`: the shape arithmetic, often
/// half the nodes of an exported transformer, disappears. Returns the number of reshapes changed.
int constant_reshapes(Graph& graph, std::vector<std::string>& log);

}  // namespace backpass
