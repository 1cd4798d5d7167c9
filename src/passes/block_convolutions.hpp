// Convolutions and what stands between them work on blocked values, [N, C/b, H, W, b], which is how oneDNN's vector
// code wants its channels. Layout changes only where a chain begins or ends.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// float32 images with constant weights and channels that fill blocks. Also folds batch normalisation, and lets
/// convolutions apply a following activation and residual sum. Returns how many nodes were rewritten.
int block_convolutions(Graph& graph, std::vector<std::string>& log);

}  // namespace backpass
