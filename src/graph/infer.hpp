// Type, shape and value inference over graphs; the same rules run with symbols (import) and with numbers (binding).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "backpass/problem.hpp"
#include "graph/graph.hpp"
#include "graph/op.hpp"

namespace backpass {

/// Runs the node's rule on the present types of its inputs and stores the result in its outputs.
/// Throws InvalidInput or Unsupported, with the node's label, when the rule refuses.
void infer_node(Graph& graph, Node& node);

/// Brings a graph (and its subgraphs, through the rules of the operators that own them) into the internal form, node by
/// node in order: lifts nodes of older opsets, infers types, replaces small constant results by constants, expands
/// composite operators. Types of graph inputs must be set; captures take theirs from the outer values.
/// Problems are collected and inference goes on with unknown types. Safe to call again on a graph already brought
/// there. Nodes that were replaced stay behind without outputs until dead nodes are removed.
std::vector<Problem> infer_graph(Graph& graph);

/// What extents that data decide are never above, by symbol, as far as the rules of the nodes say so.
std::map<std::string, Dim> bounds_of_found_extents(const Graph& graph);

/// Runs a rule on explicit facts; the result is in the context's `outputs`. Returns false when the rule could not
/// finish because something is not known yet (whatever it had set stays).
bool run_infer_rule(InferContext& context);

}  // namespace backpass
