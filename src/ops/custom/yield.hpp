// YieldOp: where a run hands its outputs to whoever trains, and waits for their gradients.
#pragma once

#include "graph/graph.hpp"

namespace backpass {

inline bool is_yield(const Node& node) { return node.op == "YieldOp" && node.domain == "com.microsoft"; }

/// Attribute: for each result, which of the inputs it is the gradient of.
inline constexpr const char* kYieldSeeds = "seeds";

}  // namespace backpass
