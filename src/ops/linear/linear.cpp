// Linear: f(alpha * A B + bias) with A, B and the result transposed on the way. Made by the pass fuse_linear.
//
//   perm_a, perm_b   axes of A and B in the order the product sees them (absent: as stored)
//   perm_y           axes of the product in the order the result is stored
//   alpha            factor of the product
//   result_type      of a product of 16-bit floats: float32, where its sums are wanted as they are
//   activation       what is done to each element, see ops/activations/fused_activation.hpp
#include "graph/op.hpp"
#include "ops/activations/fused_activation.hpp"
#include "ops/flops.hpp"
#include "ops/linear/product.hpp"

namespace backpass {
namespace {

void check_permutation(InferContext& c, std::string_view key, std::size_t rank) {
  std::vector<std::int64_t> perm = c.node.attr_ints(key);
  if (perm.empty()) return;
  std::vector<bool> seen(rank, false);
  bool sound = perm.size() == rank;
  for (std::int64_t axis : perm) {
    sound = sound && axis >= 0 && axis < static_cast<std::int64_t>(rank) && !seen[static_cast<std::size_t>(axis)];
    if (sound) seen[static_cast<std::size_t>(axis)] = true;
  }
  c.require(sound, "attribute ", key, " is ", shown(perm), ": expected a permutation of ", rank, " axes");
}

DType result_type(const Node& node, DType operands) {
  return static_cast<DType>(node.attr_int("result_type", static_cast<std::int64_t>(operands)));
}

void infer(InferContext& c) {
  c.require(c.dtype(0) == c.dtype(1), "element types of the operands: got ", name_of(c.dtype(0)), " and ",
            name_of(c.dtype(1)), ", expected the same; insert a Cast");
  c.set_dtype(0, result_type(c.node, c.dtype(0)));
  c.require(c.outputs[0].dtype == c.dtype(0) || (types::halves.has(c.dtype(0)) && c.outputs[0].dtype == DType::float32),
            "attribute result_type is ", name_of(c.outputs[0].dtype), ": expected float32, and operands of 16 bits");
  check_activation(c);
  check_permutation(c, "perm_a", c.rank(0));
  check_permutation(c, "perm_b", c.rank(1));
  Shape y = matmul_shape(c, permuted(c.shape(0), c.node.attr_ints("perm_a")),
                         permuted(c.shape(1), c.node.attr_ints("perm_b")));
  if (c.has_input(2)) {
    const Shape& bias = c.shape(2);
    c.require(bias.size() == 1 && c.rank(1) >= 2, "bias is ", shown(bias),
              ": expected one axis, and a right operand with columns");
    y.back() = c.unify(y.back(), bias[0], "columns of the product and elements of the bias");
  }
  check_permutation(c, "perm_y", y.size());
  c.set_shape(0, permuted(y, c.node.attr_ints("perm_y")));
}

std::vector<std::int64_t> inverse(const std::vector<std::int64_t>& perm) {
  std::vector<std::int64_t> result(perm.size());
  for (std::size_t i = 0; i < perm.size(); ++i) {
    result[static_cast<std::size_t>(perm[i])] = static_cast<std::int64_t>(i);
  }
  return result;
}

Kernel prepare(PrepareContext& c) {
  Product product;
  product.alpha = c.node.attr_float("alpha", 1);
  product.activation = activation_of(c.node);
  product.has_bias = c.has_input(2);
  product.constant_b = c.in(1).constant;
  product.result = c.out(0).dtype;
  product.batch = plan_product(StridedView::of(c.in(0).dims).permuted(c.node.attr_ints("perm_a")),
                               StridedView::of(c.in(1).dims).permuted(c.node.attr_ints("perm_b")),
                               StridedView::of(c.out(0).dims).permuted(inverse(c.node.attr_ints("perm_y"))));
  return product_kernel(c.in(0).dtype, std::move(product));
}

const Register linear{{.name = "Linear",
                       .domain = "backpass",
                       .since = 1,
                       .doc = "activation(alpha * A B + bias) with transposed operands and result",
                       .inputs = {2, 3},
                       .types = types::floats,
                       .infer = infer,
                       .prepare = prepare,
                       .flops = [](const Node& node) {
                         return flops::sums(node,
                                            permuted(flops::shape(node.inputs.at(0)), node.attr_ints("perm_a")).back());
                       }}};

}  // namespace
}  // namespace backpass
