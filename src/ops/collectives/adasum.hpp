// Adasum: a sum of vectors of several processes that does not count twice what they agree on.
//
// Two vectors that point the same way give their mean, orthogonal ones their sum:
//
//   a (1 - a.b / (2 a.a)) + b (1 - a.b / (2 b.b))
//
// More are combined along a tree, neighbours by rank first. Both sides of every pair compute the same from the same
// numbers in the same order, so all processes end with equal bits.
#pragma once

#include <span>

#include "backpass/parallel.hpp"

namespace backpass {

/// Replaces every tensor by its Adasum over all processes, each tensor with factors of its own. Float32 or float64.
void adasum(Communicator& world, std::span<const Tensor> tensors);

/// The combination of two vectors of `count` elements, into `a`.
void adasum_pair(DType dtype, std::int64_t count, void* a, const void* b);

}  // namespace backpass
