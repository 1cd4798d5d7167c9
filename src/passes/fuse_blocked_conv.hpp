// Blocked convolutions apply a following residual sum and activation themselves.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// Part of block_convolutions. Returns how many nodes went.
int fuse_blocked_conv(Graph& graph, std::vector<std::string>& log);

}  // namespace backpass
