// BatchNormalization after a convolution with constant weights becomes part of the weights and the bias.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// Inference form only, float32 and float64, all parameters constant. Returns how many nodes went.
int fold_batch_norm(Graph& graph, std::vector<std::string>& log);

}  // namespace backpass
