// MatMul: numpy's matrix product.
#include <memory>

#include "gradient/product_rule.hpp"
#include "graph/op.hpp"
#include "kernels/gemm.hpp"
#include "ops/flops.hpp"
#include "ops/linear/product.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.require(c.dtype(0) == c.dtype(1), "element types of the operands: got ", name_of(c.dtype(0)), " and ",
            name_of(c.dtype(1)), ", expected the same; insert a Cast");
  c.set_dtype(0, c.dtype(0));
  c.set_shape(0, matmul_shape(c, c.shape(0), c.shape(1)));
}

template <class T>
Kernel integer_kernel(GemmBatch g) {
  return [g = std::move(g)](const KernelArgs& args) {
    batched_integer_gemm<T>(g, args.in<T>(0), args.in<T>(1), args.out<T>(0));
  };
}

Kernel prepare(PrepareContext& c) {
  GemmBatch g =
      plan_product(StridedView::of(c.in(0).dims), StridedView::of(c.in(1).dims), StridedView::of(c.out(0).dims));
  DType dtype = c.in(0).dtype;
  if (is_integer(dtype)) {
    return bit_width(dtype) == 32 ? integer_kernel<std::uint32_t>(std::move(g))
                                  : integer_kernel<std::uint64_t>(std::move(g));
  }
  Product product;
  product.batch = std::move(g);
  product.constant_b = c.in(1).constant;
  return product_kernel(dtype, std::move(product));
}

template <bool fused>
void gradient(GradientContext& g) {
  ProductGradient d = product_gradient(g, g.x(0), g.x(1), g.dy(), fused);
  g.set(0, d.a);
  g.set(1, d.b);
}

const Register matmul{
    {.name = "MatMul",
     .since = 13,
     .doc = "numpy's matrix product; batch axes broadcast",
     .inputs = {2, 2},
     .types = types::floats | DTypeSet{DType::int32, DType::int64, DType::uint32, DType::uint64},
     .infer = infer,
     .prepare = prepare,
     .gradient = gradient<false>,
     .fused_gradient = gradient<true>,
     .flops = [](const Node& node) { return flops::sums(node, flops::shape(node.inputs.at(0)).back()); }}};

}  // namespace
}  // namespace backpass
