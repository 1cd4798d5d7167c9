// The two halves of a training graph: what its outputs need, and what only its gradients need.
#pragma once

#include <unordered_set>

#include "graph/op.hpp"

namespace backpass {

using NodeSet = std::unordered_set<const Node*>;

/// Nodes that only gradients among the outputs need (Graph::first_gradient); none in a graph without gradients.
NodeSet second_half(const Graph& graph);

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
