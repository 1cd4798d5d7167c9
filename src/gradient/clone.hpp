// Copies of graphs, for gradients that run a body once more.
#pragma once

#include <map>

#include "graph/graph.hpp"

namespace backpass {

using ValueMap = std::map<const Value*, Value*>;

/// Appends copies of all nodes of `from` to `to`. `copies` says what stands for the inputs and captures of `from`, and
/// learns what stands for everything else.
void clone_into(Graph& to, const Graph& from, ValueMap& copies);

}  // namespace backpass
