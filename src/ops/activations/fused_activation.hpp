// The activation that a product or convolution applies to its result while it is in cache: any operator that stands for
// one tile function of one operand. Passes ask the operator and keep the answer in the node's attributes:
//
//   activation              name of a tile function
//   activation_parameters   its TileParams, as a float64 tensor
#pragma once

#include <optional>

#include "graph/op.hpp"
#include "kernels/tile.hpp"

namespace backpass {

/// The function of input 0 that this node is, when it is just one: of the same shape and float type, with all other
/// inputs constant.
std::optional<UnaryTile> unary_tile(const Node& node);

void set_activation(Node& node, const UnaryTile& activation);
/// Part of `infer`.
void check_activation(InferContext&);
/// None when the node has none.
UnaryTile activation_of(const Node& node);

}  // namespace backpass
