// Normalisation of rows as networks write it out: squares, their mean, a small number, a root, a quotient.
#pragma once

#include <optional>

#include "graph/halves.hpp"

namespace backpass {

struct WrittenNorm {
  Node* result = nullptr;
  Value* x = nullptr;
  Value* scale = nullptr;    ///< one number per element of a row; or null
  Value* bias = nullptr;     ///< likewise, of those that are centered
  bool is_centered = false;  ///< LayerNormalization, else RMSNormalization
  double epsilon = 0;
  std::int64_t axis = 0;  ///< rows are all axes from this one on
  NodeSet nodes;          ///< everything from x to result
};

/// The normalisation in which this node is the mean of squares. Nobody else reads what lies inside.
std::optional<WrittenNorm> match_norm(const Graph& graph, Node& variance);

}  // namespace backpass
