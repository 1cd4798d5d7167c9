// Nodes that choose rows: Gather, Slice and their like, along the first axes of a tensor.
#pragma once

#include <optional>

#include "graph/builder.hpp"
#include "passes/free_shapes.hpp"
#include "passes/row_layout.hpp"

namespace backpass {

struct RowSelection {
  Node* node = nullptr;
  std::size_t row_axes = 0;  ///< how many first axes of input 0 it chooses among, and arranges

  Value* data() const { return node->inputs[0]; }
};

/// Whether a node chooses rows, each as a whole.
std::optional<RowSelection> row_selection(Node& node);

/// Whether it surely gives no more rows than it gets.
bool chooses_fewer(const RowSelection& selection);

/// Place of every row that a selection gives, in the order it gives them: what it makes of all places.
Value* chosen_places(Builder& b, const RowSelection& selection, ExtentValues& extents);

}  // namespace backpass
