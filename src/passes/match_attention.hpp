// Attention as networks write it out: MatMul, a scale, masks, Softmax, perhaps Dropout, MatMul.
#pragma once

#include <optional>
#include <vector>

#include "graph/builder.hpp"
#include "graph/halves.hpp"

namespace backpass {

/// Something done to the scores that hides keys from queries, or favours them.
struct WrittenMask {
  enum class Kind : std::uint8_t {
    added,  ///< to the scores: numbers of their type
    seen,   ///< boolean, true where a key takes part
    hidden  ///< boolean, true where it does not
  };
  Value* value = nullptr;
  Kind kind = Kind::added;
  double lowest = 0;  ///< what stands for the scores of keys that take no part
};

/// What a query gives that sees no key: zeros; what Softmax makes of masked scores, which is no number where all of
/// them are minus infinity; or, where all of them are certain to be the same finite number, the mean of all values.
enum class Unseen : std::uint8_t { zero, nan, all };

struct WrittenAttention {
  Node* scores = nullptr;          ///< the product of queries and keys
  Node* softmax = nullptr;         ///< of all that is done to them
  Node* dropout = nullptr;         ///< of the probabilities, where it may be switched on; or null
  Node* result = nullptr;          ///< the product of probabilities and values
  Value* q = nullptr;              ///< [..., queries, size]
  Value* keys = nullptr;           ///< [..., size, keys]
  Value* v = nullptr;              ///< [..., keys, size of values]
  std::vector<WrittenMask> masks;  ///< in the order they are applied
  Value* flag = nullptr;  ///< by which probabilities are put to zero: a boolean mask, who sees no key, or where they
                          ///< are no numbers; or null
  double scale = 1;       ///< of the scores
  Unseen unseen = Unseen::nan;
  NodeSet nodes;  ///< everything from scores to result
};

/// The attention whose result this node is. Who else reads what lies in between is not looked at.
std::optional<WrittenAttention> match_attention(Node& result);

/// The boolean mask that one of numbers is made of: 0 where a key takes part, elsewhere the lowest.
std::optional<WrittenMask> boolean_mask(const WrittenMask& added);

/// All of its masks in one, for operators that take one: null, boolean (true: takes part), or added to the scores.
Value* joined_mask(Builder& b, const WrittenAttention& attention);

/// Factors of queries and keys become part of the scale.
void take_factors(WrittenAttention& attention);

/// Whether a mask depends on parameters: it gets a gradient, for which all scores are needed after all.
bool has_learned_mask(const Graph& graph, const std::vector<WrittenMask>& masks);

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
