// Attention in a graph, be it one operator or written out, and where batch, lengths and heads of its operands are.
#pragma once

#include <optional>
#include <vector>

#include "graph/builder.hpp"
#include "graph/halves.hpp"
#include "passes/match_attention.hpp"
#include "passes/row_layout.hpp"

namespace backpass {

/// Axes of an operand. The batch axis may hold heads, too, behind the batch.
struct AttentionAxes {
  std::size_t batch = 0;
  std::size_t length = 0;
};

struct AttentionSite {
  Node* result = nullptr;
  NodeSet nodes;  ///< all it consists of
  Value* q = nullptr;
  Value* k = nullptr;
  Value* v = nullptr;
  std::optional<WrittenAttention> written;
  std::vector<WrittenMask> masks;
  Value* mask = nullptr;  ///< all of them as one, once it was asked for (mask_of)
  Value* ratio = nullptr;
  Value* training = nullptr;
  AttentionAxes q_axes, k_axes, v_axes;  ///< the result's are those of q
  bool is_ragged = false;                ///< RaggedAttention: its rows are packed, or all of them
  /// A query that sees no key looks at all alike.
  bool unseen_sees_all = false;
  bool is_causal = false;
  AttributeList attributes;  ///< of the RaggedAttention that takes its place, but for numbers of heads
  std::int64_t heads = 0;    ///< of queries; 0: an axis of the operands says so
  std::int64_t kv_heads = 0;

  Shape extents;  ///< of a RaggedAttention: batch, queries, keys

  Dim batch() const;    ///< with the heads that are part of it
  Dim queries() const;  ///< per sequence
  Dim keys() const;
  bool may_hold_heads_in_batch() const;
};

/// All that RaggedAttention can stand for, in the graph's order: nobody else reads what lies inside, and the mask is
/// not learned.
std::vector<AttentionSite> attention_sites(Graph& graph);

/// The mask as one value, null where there is none; made where it has to be.
Value* mask_of(Graph& graph, AttentionSite& site);

/// Layouts of its operands, for rows of the result with a layout.
struct AttentionLayouts {
  RowLayout q, k, v;
};

/// None when rows of the result are no queries, or not in the order of sequences.
std::optional<AttentionLayouts> attention_layouts(const AttentionSite& site, const RowLayout& result);

/// The layout of an operand whose rows are numbered sequence by sequence.
RowLayout sequence_layout(const Shape& shape, const AttentionAxes& axes, const Dim& heads_in_batch);

}  // namespace backpass
