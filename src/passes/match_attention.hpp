// Attention as networks write it out: MatMul, a scale, a mask, Softmax, Dropout, MatMul.
#pragma once

#include <optional>

#include "graph/halves.hpp"

namespace backpass {

struct WrittenAttention {
  Node* scores = nullptr;      ///< the product of queries and keys
  Node* softmax = nullptr;     ///< of all that is done to them
  Node* dropout = nullptr;     ///< of the probabilities
  Node* result = nullptr;      ///< the product of probabilities and values
  Value* q = nullptr;          ///< [..., queries, size]
  Value* keys = nullptr;       ///< [..., size, keys]
  Value* v = nullptr;          ///< [..., keys, size of values]
  Value* mask = nullptr;       ///< null, boolean (true: takes part), or added to the scores
  Value* flag = nullptr;       ///< by which probabilities are put to zero: a boolean mask, or who sees no key; or null
  double scale = 1;            ///< of the scores
  bool unseen_is_nan = false;  ///< a query that sees no key gives no number; else zeros
  NodeSet nodes;               ///< everything from scores to result
};

/// The attention whose result this node is, if it is one that FusedAttention computes alike. Who else reads what lies
/// in between is not looked at.
std::optional<WrittenAttention> match_attention(Node& result);

/// Factors of queries and keys become part of the scale.
void take_factors(WrittenAttention& attention);

/// What a differentiated graph makes of it; null for what nobody asked for.
struct WrittenAttentionGradient {
  Value* dy = nullptr;
  Value* dq = nullptr;
  Value* dkeys = nullptr;  ///< laid out as the keys
  Value* dv = nullptr;
  NodeSet nodes;
};

/// Its gradient, when all scores are scaled by the same number on the way back.
std::optional<WrittenAttentionGradient> match_attention_gradient(const Graph& graph, const WrittenAttention& attention);

/// The number that a node multiplies something by, or that it divides it by the inverse of.
struct Factor {
  Value* of;
  double number;
};
std::optional<Factor> factor_of(const Node* node);

}  // namespace backpass
