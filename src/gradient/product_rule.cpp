#include "gradient/product_rule.hpp"

#include <numeric>

namespace backpass {
namespace {

/// All axes but the last as one.
Value* as_rows(GradientContext& g, Value* a) {
  return g.rank(a) == 2 ? a : g.op("Flatten", {a}, {{"axis", g.rank(a) - 1}});
}

/// Any number of rows times one matrix.
ProductGradient row_gradient(GradientContext& g, Value* a, Value* b, Value* dy) {
  const std::int64_t on = 1;
  Value* rows = as_rows(g, dy);
  return {g.reshape_like(g.op("Gemm", {rows, b}, {{"transB", on}}), a),
          g.op("Gemm", {as_rows(g, a), rows}, {{"transA", on}})};
}

ProductGradient batch_gradient(GradientContext& g, Value* a, Value* b, Value* dy, bool fused) {
  const std::int64_t on = 1;
  Value* da = nullptr;
  Value* db = nullptr;
  if (fused) {
    da = g.op("FusedMatMul", {dy, b}, {{"transB", on}}, "com.microsoft");
    db = g.op("FusedMatMul", {a, dy}, {{"transA", on}}, "com.microsoft");
  } else {
    da = g.matmul(dy, swap_last_axes(g, b));
    db = g.matmul(swap_last_axes(g, a), dy);
  }
  return {g.reduce_like(da, a), g.reduce_like(db, b)};
}

}  // namespace

Value* swap_last_axes(GradientContext& g, Value* a) {
  std::vector<std::int64_t> perm(static_cast<std::size_t>(g.rank(a)));
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[perm.size() - 2], perm[perm.size() - 1]);
  return g.transpose(a, std::move(perm));
}

ProductGradient product_gradient(GradientContext& g, Value* a, Value* b, Value* dy, bool fused) {
  const bool a_is_vector = g.rank(a) == 1;
  const bool b_is_vector = g.rank(b) == 1;
  if (a_is_vector && b_is_vector) return {g.mul(dy, b), g.mul(dy, a)};
  // A vector is a matrix with one row (left) or one column (right), which the product drops again.
  if (b_is_vector) dy = g.unsqueeze(dy, {-1});
  if (a_is_vector) dy = g.unsqueeze(dy, {-2});
  Value* left = a_is_vector ? g.unsqueeze(a, {0}) : a;
  Value* right = b_is_vector ? g.unsqueeze(b, {1}) : b;
  ProductGradient result =
      g.rank(right) == 2 ? row_gradient(g, left, right, dy) : batch_gradient(g, left, right, dy, fused);
  if (a_is_vector) result.a = g.squeeze(result.a, {0});
  if (b_is_vector) result.b = g.squeeze(result.b, {1});
  return result;
}

}  // namespace backpass
