// Operations of nodes whose work is more than their size, for OpDef::flops. A multiplication and an addition are two.
#pragma once

#include <algorithm>

#include "graph/graph.hpp"

namespace backpass::flops {

inline const Shape& shape(const Value* v) { return *v->type.shape; }
inline Dim elements(const Value* v) { return product(shape(v)); }

/// A sum of `terms` products for every element of the first output.
inline Dim sums(const Node& node, const Dim& terms) { return Dim(2) * elements(node.outputs.at(0)) * terms; }

/// Elements of a weight that belong to one of its first extent: the terms of a convolution's sums.
inline Dim per_channel(const Value* weight) {
  Dim result(1);
  for (std::size_t i = 1; i < shape(weight).size(); ++i) result = result * shape(weight)[i];
  return result;
}

/// Of a gradient with respect to input and weights, each of which costs as much as the convolution.
inline Dim convolution_gradient(const Node& node, const Dim& forward) {
  return Dim((node.output(0) != nullptr ? 1 : 0) + (node.output(1) != nullptr ? 1 : 0)) * forward;
}

/// Pairs of a query and a key that it may see: all, unless each sees only those up to its own place.
inline Dim visible_pairs(const Dim& queries, const Dim& keys, bool is_causal) {
  if (!is_causal || !queries.is_known() || !keys.is_known()) return queries * keys;
  const std::int64_t first = std::min(queries.value(), keys.value());
  return Dim(first * (first + 1) / 2 + (queries.value() - first) * keys.value());
}

/// Scores and their sums of values: products of matrices over the size of a query, and over that of a value. Tensors
/// are [batch, heads, length, size] or [batch, length, heads * size].
inline Dim attention(const Node& node, std::size_t queries, std::int64_t by_queries, std::int64_t by_values) {
  const Shape& q = shape(node.inputs.at(queries));
  const Shape& k = shape(node.inputs.at(queries + 1));
  const Shape& v = shape(node.inputs.at(queries + 2));
  const bool has_axis = q.size() == 4;
  const bool is_causal = node.attr_int("is_causal", 0) != 0;
  const Dim pairs = visible_pairs(q.at(has_axis ? 2 : 1), k.at(k.size() == 4 ? 2 : 1), is_causal);
  const Dim width = has_axis ? q.at(1) * q.at(3) : q.at(2);
  Dim value_width = width;  // heads of queries times the size of a value
  if (has_axis && v.size() == 4) value_width = q.at(1) * v.at(3);
  const std::int64_t shared = node.attr_int("kv_num_heads", 0);
  if (!has_axis && v.size() == 3 && shared > 0) value_width = v.at(2) * Dim(node.attr_int("q_num_heads", 0) / shared);
  return Dim(2) * q.at(0) * pairs * (Dim(by_queries) * width + Dim(by_values) * value_width);
}

/// Every step multiplies by all weights, for every element of the batch. X is [steps, batch, size], either way around.
inline Dim recurrent(const Node& node) {
  const Shape& x = shape(node.inputs.at(0));
  return Dim(2) * x.at(0) * x.at(1) * (elements(node.inputs.at(1)) + elements(node.inputs.at(2)));
}

}  // namespace backpass::flops
