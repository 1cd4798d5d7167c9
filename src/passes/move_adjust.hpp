// What has to change of a node besides its inputs when it is to compute a part of its result: shapes it is given as
// numbers, and the places of what it drops.
#pragma once

#include "passes/axis_map.hpp"
#include "passes/selection.hpp"

namespace backpass {

/// Whether adjust() will do.
bool can_adjust(const Node& node, std::size_t axis, const AxisMap& map, const Selection& selection);

/// To be called before the node's inputs are selected.
void adjust(Graph& graph, Node& node, std::size_t axis, const AxisMap& map, const Selection& selection);

}  // namespace backpass
