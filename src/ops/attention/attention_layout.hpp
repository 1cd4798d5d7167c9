// How Attention and its gradient find heads in memory.
#pragma once

#include "graph/op.hpp"
#include "ops/attention/attention_kernel.hpp"

namespace backpass {

/// A tensor of heads in memory: [batch, heads, length, size], or [batch, length, heads * size].
struct HeadTensor {
  std::int64_t batch, heads, length, size;
  AttentionStrides strides;
};

/// `heads` counts for three axes only.
HeadTensor head_tensor(const Dims& dims, std::int64_t heads);

/// Of a mask that broadcasts to [batch, heads, queries, keys].
AttentionStrides mask_strides(const Dims& mask);

/// The extents, and what the node's attributes say; `past` keys lie before those in `keys`.
AttentionShape attention_shape(const Node& node, const HeadTensor& q, const HeadTensor& keys, const HeadTensor& values,
                               std::int64_t past);

/// Fails unless each is in [0, keys].
void check_kv_lengths(const std::string& label, const std::int64_t* lengths, const AttentionShape& shape);

}  // namespace backpass
