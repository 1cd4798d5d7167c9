// Copies of graphs, for gradients that run a body once more.
#pragma once

#include <map>
#include <memory>

#include "graph/graph.hpp"

namespace backpass {

using ValueMap = std::map<const Value*, Value*>;

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

}  // namespace backpass
