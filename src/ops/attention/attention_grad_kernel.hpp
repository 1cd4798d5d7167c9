// Gradient of scaled dot-product attention, block of queries by block of queries: like the forward run it never holds
// the matrix of all scores, and keeps nothing from it.
#pragma once

#include "ops/attention/attention_kernel.hpp"

namespace backpass {

/// Laid out as the q, k and v they belong to.
template <class T>
struct AttentionGradients {
  const T* dy = nullptr;  ///< laid out by AttentionTensors::y_strides
  T* dq = nullptr;
  T* dk = nullptr;
  T* dv = nullptr;
  T* dmask = nullptr;  ///< laid out as added_mask, zeros before; may be null
};

/// `tensors` without results (y, scores), and no gradient of the mask.
template <class T>
void attention_backward(const AttentionShape& shape, const AttentionTensors<T>& tensors,
                        const AttentionGradients<T>& gradients);

/// The same for some rows of the batch; each key is in one sequence, with all queries that see it.
template <class T>
void attention_backward(const AttentionShape& shape, const AttentionTensors<T>& tensors,
                        const AttentionGradients<T>& gradients, std::span<const AttentionSequence> sequences);

}  // namespace backpass
