// Dropout masks that only the gradient reads are not kept: it draws the random numbers again.
#pragma once

#include <string>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// Returns how many masks went.
int drop_dropout_masks(Graph& graph, std::vector<std::string>& log);

}  // namespace backpass
