// Type, shape and value inference over graphs; the same rules run with symbols (import) and with numbers (binding).
#pragma once

#include <string>
#include <vector>

#include "graph/graph.hpp"
#include "ops/op.hpp"

namespace backpass {

/// Runs the node's rule on the present types of its inputs and stores the result in its outputs.
/// Throws InvalidInput with the node's label when the rule refuses.
void infer_node(Graph& graph, Node& node);

/// Infers the whole graph (subgraphs included) in order. Problems are collected, one text each, and inference goes on
/// with unknown types. Declared types of outputs and value_info are unified with what was found.
std::vector<std::string> infer_graph(Graph& graph);

/// Runs a rule on explicit facts; the result is in the context's `outputs`.
void run_infer_rule(InferContext& context);

}  // namespace backpass
