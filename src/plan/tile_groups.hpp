// Which nodes can run as one tile program.
#pragma once

#include <span>
#include <vector>

#include "graph/graph.hpp"
#include "kernels/tile.hpp"

namespace backpass {

/// True for a constant of one element, which a program holds in itself.
inline bool is_immediate(const Value& v) { return v.constant && v.constant->size() == 1; }

/// The reduction that this node is, if it is one over the last axis that keeps it (ReduceSum, Mean, Max, Min).
const TileReduction* row_reduction(const Node& node);

/// Inputs that hold elements to work on (axes of a reduction do not).
std::span<Value* const> tile_operands(const Node& node);

struct TileGroup {
  std::vector<Node*> nodes;
  Shape shape;            ///< of the elements the program works on
  bool has_rows = false;  ///< some nodes reduce along the last axis, or work on what is left then
};

/// Disjoint groups of at least two connected nodes, pointwise or reducing along the last axis, that work on one shape.
/// Replacing each group by a single node leaves the graph acyclic.
std::vector<TileGroup> find_tile_groups(Graph& graph);

}  // namespace backpass
