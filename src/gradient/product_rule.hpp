// The derivative that MatMul and its relatives share.
#pragma once

#include "gradient/rule.hpp"

namespace backpass {

struct ProductGradient {
  Value* a;
  Value* b;
};

/// Gradients of the operands of numpy's product a @ b. A matrix on the right of many rows gets its gradient from one
/// Gemm. `fused`: batches of products transpose on the way (FusedMatMul) instead of by a Transpose of their own.
ProductGradient product_gradient(GradientContext& g, Value* a, Value* b, Value* dy, bool fused);

/// With the last two axes exchanged.
Value* swap_last_axes(GradientContext& g, Value* a);

}  // namespace backpass
