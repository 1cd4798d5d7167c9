// What MatMul, Gemm and their relatives share: numpy's shape rule, and the way from shapes to one batched product.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/op.hpp"
#include "kernels/gemm.hpp"

namespace backpass {

/// numpy.matmul's result for operands of these shapes (after any transposition); operand names only serve messages.
Shape matmul_shape(InferContext&, Shape a, Shape b);

/// The extents in another order; an empty perm changes nothing.
Shape permuted(const Shape& shape, const std::vector<std::int64_t>& perm);

/// A tensor read through strides, as a transposition leaves it.
struct StridedView {
  Dims dims;
  Dims strides;

  static StridedView of(const Dims& dims);
  StridedView permuted(const std::vector<std::int64_t>& perm) const;  ///< an empty perm changes nothing
};

/// True when gemm can read the last two axes: one of them is contiguous.
bool is_matrix_readable(const StridedView&);

/// The product a @ b -> y as gemm wants it: 1-D operands widened, batch axes broadcast and folded into rows where the
/// right operand is one matrix. `y` has the shape of the result (its own strides may come from a transposition).
GemmBatch plan_product(StridedView a, StridedView b, StridedView y);

/// Everything about a product but its operands.
struct Product {
  GemmBatch batch;
  double alpha = 1;
  UnaryTile activation;
  bool has_bias = false;  ///< input `bias_input`, one element per column
  std::size_t bias_input = 2;
  const Tensor* constant_b = nullptr;  ///< packed once when it is a single matrix
  DType result = DType::undefined;     ///< of output 0, where it is not that of the operands
};

/// Output 0 = f(alpha * input 0 @ input 1 + bias) for floats. 16-bit ones are summed in float32, and may give float32.
Kernel product_kernel(DType dtype, Product product);

}  // namespace backpass
