// Which rows of its inputs a node needs for rows of its outputs: the rules of operators that treat rows one by one.
#pragma once

#include <optional>
#include <vector>

#include "graph/graph.hpp"
#include "passes/row_layout.hpp"

namespace backpass {

/// What a node reads of one input to compute some rows.
struct RowOperand {
  /// None: all of it, as it is (weights, axes). Without rows: it is stretched along them (a bias).
  std::optional<RowLayout> layout;
  /// Not of all factors of rows: stretched along the others (what is added to each sequence alike).
  bool is_part = false;
};

/// Per input of a node that computes each row of its outputs from the same rows of inputs. `outputs`: the layout of
/// each output, none for those that nobody reads. Nothing for other nodes.
std::optional<std::vector<RowOperand>> row_operands(const Node& node,
                                                    const std::vector<std::optional<RowLayout>>& outputs);

}  // namespace backpass
