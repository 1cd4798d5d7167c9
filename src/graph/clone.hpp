// Copies of graphs, for gradients that run a body once more.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>

#include "graph/graph.hpp"

namespace backpass {

using ValueMap = std::unordered_map<const Value*, Value*>;

/// Appends copies of all nodes of `from` to `to`. `copies` says what stands for the inputs and captures of `from`, and
/// learns what stands for everything else.
void clone_into(Graph& to, const Graph& from, ValueMap& copies);

struct Clone {
  std::unique_ptr<Graph> graph;
  ValueMap copies;  ///< value of the original -> value of the copy

  Value* of(const Value* original) const { return copies.at(original); }
};

/// A second graph with the same contents; tensors share their data, captures go to the same outer values.
Clone clone(const Graph& graph);
/// The same with the nodes in another order, in which producers must come first, too.
Clone clone(const Graph& graph, std::span<const Node* const> order);

}  // namespace backpass
