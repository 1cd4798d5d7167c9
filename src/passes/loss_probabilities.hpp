// Log probabilities that only the gradient of their loss reads are not kept: it computes them from the scores again,
// which is cheaper than to write them and read them back.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// Returns how many tensors of log probabilities went.
int drop_loss_probabilities(Graph& graph, std::vector<std::string>& log);

}  // namespace backpass
