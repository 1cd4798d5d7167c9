// Attention as networks write it out: MatMul, a scale, a mask, Softmax, Dropout, MatMul.
#pragma once

#include <optional>
#include <unordered_set>

#include "graph/graph.hpp"

namespace backpass {

struct WrittenAttention {
  Node* scores = nullptr;   ///< the product of queries and keys
  Node* softmax = nullptr;  ///< of all that is done to them
  Node* dropout = nullptr;  ///< of the probabilities
  Node* result = nullptr;   ///< the product of probabilities and values
  Value* q = nullptr;       ///< [..., queries, size], before it is scaled
  Value* keys = nullptr;    ///< [..., size, keys], before they are scaled
  Value* v = nullptr;       ///< [..., keys, size of values]
  Value* mask = nullptr;    ///< null, boolean (true: takes part), or added to the scores
  double scale = 1;
  bool unseen_is_nan = false;  ///< a query that sees no key gives no number; else zeros
  /// Everything from scores to result.
  std::unordered_set<const Node*> nodes;
};

/// The attention whose result this node is, if it is one that FusedAttention computes alike. Who else reads what lies
/// in between is not looked at.
std::optional<WrittenAttention> match_attention(Node& result);

}  // namespace backpass
