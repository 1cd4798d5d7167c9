// Det: determinant of square matrices.
#include <cmath>
#include <numeric>
#include <utility>

#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "ops/flops.hpp"
#include "ops/shape_rules.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  Shape shape = c.shape(0);
  std::size_t rank = shape.size();
  c.require(rank >= 2, "input: got rank ", rank, ", expected [..., n, n]");
  c.unify(shape[rank - 2], shape[rank - 1], "rows and columns");
  shape.resize(rank - 2);
  c.set_shape(0, std::move(shape));
}

/// Gaussian elimination with row exchanges; destroys the matrix.
double determinant(double* m, std::int64_t n) {
  double det = 1;
  for (std::int64_t k = 0; k < n; ++k) {
    std::int64_t pivot = k;
    for (std::int64_t r = k + 1; r < n; ++r) {
      if (std::abs(m[r * n + k]) > std::abs(m[pivot * n + k])) pivot = r;
    }
    double p = m[pivot * n + k];
    det *= p;
    if (p == 0) return 0;
    if (pivot != k) {
      det = -det;
      for (std::int64_t col = k; col < n; ++col) std::swap(m[k * n + col], m[pivot * n + col]);
    }
    for (std::int64_t r = k + 1; r < n; ++r) {
      double factor = m[r * n + k] / p;
      for (std::int64_t col = k + 1; col < n; ++col) m[r * n + col] -= factor * m[k * n + col];
    }
  }
  return det;
}

Kernel prepare(PrepareContext& c) {
  DType dtype = c.in(0).dtype;
  const Dims& dims = c.in(0).dims;
  std::int64_t n = dims.back();
  c.require(dims[dims.size() - 2] == n, "input: got shape ", shown(dims), ", expected square matrices");
  std::int64_t matrices = product(dims, 0, dims.size() - 2);
  std::size_t scratch = c.reserve(static_cast<std::size_t>(matrices * n * n) * sizeof(double));
  return [=](const KernelArgs& a) {
    auto* work = reinterpret_cast<double*>(a.scratch + scratch);
    visit_real(dtype, [&]<class T>() {
      parallel_for(matrices, grain_for(n * n * n), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) {
          double* m = work + i * n * n;
          for (std::int64_t k = 0; k < n * n; ++k) m[k] = static_cast<double>(a.in<T>(0)[i * n * n + k]);
          a.out<T>(0)[i] = static_cast<T>(determinant(m, n));
        }
      });
    });
  };
}

/// The matrix of cofactors: (-1)^(i+j) times the determinant of what is left without row i and column j. Unlike
/// det(X) inverse(X)', it exists where the determinant is zero.
void gradient(GradientContext& g) {
  const std::int64_t rank = g.rank(g.x());
  Value* n = g.extent(g.x(), -1);
  Value* zero = g.b.integer(0);
  Value* one = g.b.integer(1);
  Value* index = g.op("Range", {zero, n, one});
  Value* column = g.unsqueeze(index, {1});
  Value* fewer = g.op("Range", {zero, g.op("Max", {g.sub(n, one), zero}), one});
  // Row i lists the indices other than i.
  Value* others = g.add(fewer, g.cast(g.op("GreaterOrEqual", {fewer, column}), DType::int64));
  // [..., i, rows but i, j, columns but j], then both pairs side by side.
  Value* minors = g.gather(g.gather(g.x(), others, rank - 2), others, rank);
  std::vector<std::int64_t> perm(static_cast<std::size_t>(rank + 2));
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[perm.size() - 3], perm[perm.size() - 2]);
  Value* cofactors = g.op("Det", {g.transpose(minors, std::move(perm))});
  Value* is_odd = g.equal(g.op("Mod", {g.add(index, column), g.b.integer(2)}), one);
  cofactors = g.where(is_odd, g.neg(cofactors), cofactors);
  g.set(0, g.mul(g.unsqueeze(g.dy(), {-2, -1}), cofactors));
}

const Register kOp({.name = "Det",
                    .since = 22,
                    .doc = "determinant of square matrices",
                    .types = types::floats,
                    .infer = infer,
                    .prepare = prepare,
                    .gradient = gradient,
                    .half_through_float = true,
                    .flops = [](const Node& node) {
                      return flops::elements(node.inputs.at(0)) * flops::shape(node.inputs.at(0)).back();
                    }});

}  // namespace
}  // namespace backpass
