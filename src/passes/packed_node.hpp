// A node that treats rows one by one, written again for packed rows.
#pragma once

#include "graph/builder.hpp"
#include "passes/row_operands.hpp"
#include "passes/row_selection.hpp"

namespace backpass {

struct PackedNode {
  const Node& node;
  const std::vector<RowOperand>& operands;
  const RowLayout& out;        ///< of the results that are needed, which differ in one axis at most
  std::vector<Value*> inputs;  ///< packed where operands have rows
  Value* places;
  ExtentValues& extents;
};

/// One value per output of the node; null for those that packed rows do not have.
std::vector<Value*> packed_results(Builder& b, PackedNode packed);

/// Whether it only arranges elements: Reshape and its like.
bool arranges(const Node& node);

/// Whether operands are stretched to the result.
bool stretches(const Node& node);

}  // namespace backpass
