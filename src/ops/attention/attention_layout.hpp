// How Attention and its gradient find heads in memory, and what their inputs say.
#pragma once

#include "graph/op.hpp"
#include "ops/attention/attention_kernel.hpp"
#include "ops/random/dropout.hpp"
#include "ops/read_scalar.hpp"

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

/// What ratio and training_mode say, as Dropout reads them. The attribute `stream` names the random numbers of the
/// Dropout that it stands for; without it, the node does.
class DropoutInputs {
 public:
  DropoutInputs(const PrepareContext& c, std::size_t ratio, std::size_t training);
  AttentionDropout read(const KernelArgs& a) const;  ///< for the run at hand

 private:
  ScalarInput ratio_, training_;
  RandomStream stream_;
  std::string where_;
};

}  // namespace backpass
