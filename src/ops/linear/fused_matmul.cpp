// com.microsoft FusedMatMul and TransposeMatMul: matrix product of operands transposed on the way, times alpha.
#include <algorithm>
#include <numeric>

#include "gradient/product_rule.hpp"
#include "graph/op.hpp"
#include "ops/flops.hpp"
#include "ops/linear/product.hpp"

namespace backpass {
namespace {

/// The axes in the order the product sees them. transBatch moves the first axis behind the batch axes, trans swaps the
/// last two.
std::vector<std::int64_t> permutation(const Node& node, std::size_t rank, bool left) {
  std::vector<std::int64_t> perm(rank);
  std::iota(perm.begin(), perm.end(), 0);
  if (rank < 2) return perm;
  if (node.attr_int(left ? "transBatchA" : "transBatchB", 0) != 0) {
    for (std::size_t i = 0; i + 2 < rank; ++i) perm[i] = static_cast<std::int64_t>(i) + 1;
    perm[rank - 2] = 0;
  }
  if (node.attr_int(left ? "transA" : "transB", 0) != 0) std::swap(perm[rank - 2], perm[rank - 1]);
  return perm;
}

void infer(InferContext& c) {
  c.require(c.dtype(0) == c.dtype(1), "element types of the operands: got ", name_of(c.dtype(0)), " and ",
            name_of(c.dtype(1)), ", expected the same; insert a Cast");
  c.set_dtype(0, c.dtype(0));
  Shape a = permuted(c.shape(0), permutation(c.node, c.rank(0), true));
  Shape b = permuted(c.shape(1), permutation(c.node, c.rank(1), false));
  c.set_shape(0, matmul_shape(c, std::move(a), std::move(b)));
}

Kernel prepare(PrepareContext& c) {
  Product product;
  product.alpha = c.node.attr_float("alpha", 1);
  product.constant_b = c.in(1).constant;
  product.batch = plan_product(StridedView::of(c.in(0).dims).permuted(permutation(c.node, c.in(0).dims.size(), true)),
                               StridedView::of(c.in(1).dims).permuted(permutation(c.node, c.in(1).dims.size(), false)),
                               StridedView::of(c.out(0).dims));
  return product_kernel(c.in(0).dtype, std::move(product));
}

Dim count_flops(const Node& node) {
  const Shape& a = flops::shape(node.inputs.at(0));
  return flops::sums(node, permuted(a, permutation(node, a.size(), true)).back());
}

Value* permute(GradientContext& g, Value* a, const std::vector<std::int64_t>& perm) {
  return std::is_sorted(perm.begin(), perm.end()) ? a : g.transpose(a, perm);
}

std::vector<std::int64_t> inverse_of(const std::vector<std::int64_t>& perm) {
  std::vector<std::int64_t> inverse(perm.size());
  for (std::size_t i = 0; i < perm.size(); ++i)
    inverse[static_cast<std::size_t>(perm[i])] = static_cast<std::int64_t>(i);
  return inverse;
}

/// That of the product of the transposed operands, transposed back.
template <bool fused>
void gradient(GradientContext& g) {
  const float alpha = g.node.attr_float("alpha", 1);
  auto perm_a = permutation(g.node, static_cast<std::size_t>(g.rank(g.x(0))), true);
  auto perm_b = permutation(g.node, static_cast<std::size_t>(g.rank(g.x(1))), false);
  Value* dy = alpha == 1 ? g.dy() : g.mul(g.dy(), g.number(alpha));
  ProductGradient d = product_gradient(g, permute(g, g.x(0), perm_a), permute(g, g.x(1), perm_b), dy, fused);
  g.set(0, permute(g, d.a, inverse_of(perm_a)));
  g.set(1, permute(g, d.b, inverse_of(perm_b)));
}

constexpr OpDef kDefinition{.name = "FusedMatMul",
                            .domain = "com.microsoft",
                            .since = 1,
                            .doc = "alpha * A' B' with numpy's batch rules, operands optionally transposed",
                            .inputs = {2, 2},
                            .types = types::floats,
                            .infer = infer,
                            .prepare = prepare,
                            .gradient = gradient<false>,
                            .fused_gradient = gradient<true>,
                            .flops = count_flops};

OpDef renamed(std::string_view name) {
  OpDef def = kDefinition;
  def.name = name;
  return def;
}

const Register fused_matmul{kDefinition};
const Register transpose_matmul{renamed("TransposeMatMul")};

}  // namespace
}  // namespace backpass
