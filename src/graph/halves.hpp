// The two halves of a training graph: what its outputs need, and what only its gradients need.
#pragma once

#include <string>
#include <unordered_set>

#include "graph/op.hpp"

namespace backpass {

using NodeSet = std::unordered_set<const Node*>;

/// Nodes that outputs need which are no gradients (Graph::first_gradient); all of a graph without gradients.
NodeSet first_half(const Graph& graph);

/// Nodes that only gradients among the outputs need.
NodeSet second_half(const Graph& graph);

/// Name of a copy of the node, for the second half. What it draws at random is named by the node, or by its result when
/// it has no name.
std::string name_of_copy(const Node& node);

/// The value whose memory this one lies in: itself, or what it is a view of.
template <class V>  // Value or const Value
V* memory_of(V* v) {
  while (v->producer != nullptr && v->producer->def != nullptr && v->producer->def->is_view) {
    v = v->producer->inputs.at(0);
  }
  return v;
}

/// Whether a node reads no more of its inputs than their extents.
bool reads_extents_only(const Node& node);

}  // namespace backpass
