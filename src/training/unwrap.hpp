// Training models as files have them, with accumulators of gradients, turned into graphs that give the gradients out.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// Whose gradients the graph gives, and which parameters it gives new values for (running statistics), in order.
struct Unwrapped {
  std::vector<std::string> trainable;
  std::vector<std::string> updated;
};

/// Replaces the flags of accumulators among the outputs by what they accumulate: outputs are the user's, then
/// gradients, then new values. Buffers and the reset flag are no inputs any more.
Unwrapped unwrap_accumulators(Graph& graph, const std::set<std::string>& parameters);

/// The reverse: of outputs that are the user's, then gradients (Graph::first_gradient), then new values. Returns the
/// names of the flags behind the user's outputs.
std::vector<std::string> wrap_accumulators(Graph& graph, const Unwrapped& names);

/// Every output becomes a value to itself, computed by a node, so that each can have its own memory.
void own_outputs(Graph& graph);

}  // namespace backpass
