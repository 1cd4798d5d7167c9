// MatMul and Gemm take over what stands around them: transpositions and scalar factors of operands and result, a bias,
// an activation. Run it after passes that look for MatMul by name (attention).
#pragma once

#include <string>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// Rewrites chains to backpass.Linear (ops/linear/linear.cpp). Returns how many nodes went.
int fuse_linear(Graph& graph, std::vector<std::string>& log);

}  // namespace backpass
