// Nodes that are there for what they do, not only for what they give: those that talk to other processes.
//
// Such nodes run once per run, in the order they have in the graph, and are never removed: another process waits for
// them. Passes may move everything else around them.
#pragma once

#include "graph/graph.hpp"

namespace backpass {

/// Whether the node, or one in its subgraphs, has an effect (OpDef::has_effect).
bool has_effect(const Node& node);

/// The first node of the graph that has one, or null.
const Node* find_effect(const Graph& graph);

}  // namespace backpass
