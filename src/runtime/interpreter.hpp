// The reference executor: every node by itself, in order, nothing planned. Slow and obvious; planned execution is
// tested against it, and it is what `SessionOptions::reference` selects.
#pragma once

#include <vector>

#include "backpass/tensor.hpp"
#include "graph/graph.hpp"

namespace backpass {

/// Runs the graph. `captured` holds one value per Graph::captures entry. Values are released after their last use.
std::vector<RuntimeValue> interpret(const Graph& graph, const std::vector<RuntimeValue>& inputs,
                                    const std::vector<RuntimeValue>& captured = {});

}  // namespace backpass
