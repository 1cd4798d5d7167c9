// Operations of nodes whose work is more than their size, for OpDef::flops. A multiplication and an addition are two.
#pragma once

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

/// Scores and their sums of values, for every query: `products` of so many matrices. Queries and keys may be
/// [batch, heads, length, size] or [batch, length, heads * size].
inline Dim attention(const Value* queries, const Value* keys, std::int64_t products) {
  return Dim(2 * products) * elements(queries) * shape(keys).at(shape(keys).size() == 4 ? 2 : 1);
}

/// Every step multiplies by all weights, for every element of the batch. X is [steps, batch, size], either way around.
inline Dim recurrent(const Node& node) {
  const Shape& x = shape(node.inputs.at(0));
  return Dim(2) * x.at(0) * x.at(1) * (elements(node.inputs.at(1)) + elements(node.inputs.at(2)));
}

}  // namespace backpass::flops
