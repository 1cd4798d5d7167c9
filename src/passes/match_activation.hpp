// Recognises activations that a product or convolution can apply on the way out.
#pragma once

#include <optional>

#include "graph/graph.hpp"
#include "ops/activations/fused_activation.hpp"

namespace backpass {

struct MatchedActivation {
  UnaryTile tile;
  Node* last = nullptr;  ///< the node whose output is the activated value
};

/// The activation applied to `v`, when nothing else reads `v`: one node, or x * Sigmoid(x) in two.
std::optional<MatchedActivation> match_activation(const Graph& graph, const Value* v);

/// The only element of a constant, if `v` is one with a single element of a numeric type.
std::optional<double> scalar_constant(const Value* v);

}  // namespace backpass
