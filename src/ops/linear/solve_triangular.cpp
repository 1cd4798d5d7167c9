// SolveTriangular: systems of equations whose matrix is triangular.
#include <algorithm>
#include <vector>

#include "gradient/product_rule.hpp"
#include "graph/op.hpp"
#include "ops/linear/product.hpp"
#include "support/parallel.hpp"
#include "support/strides.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.require(c.dtype(0) == c.dtype(1), "element types of the operands: got ", name_of(c.dtype(0)), " and ",
            name_of(c.dtype(1)), ", expected the same; insert a Cast");
  c.set_dtype(0, c.dtype(0));
  const Shape& a = c.shape(0);
  const Shape& b = c.shape(1);
  c.require(a.size() >= 2 && b.size() >= 2, "shapes of the operands: got ", shown(a), " and ", shown(b),
            ", expected [..., n, n] and [..., n, k]");
  c.unify(a[a.size() - 2], a.back(), "rows and columns of A");
  c.set_shape(0, matmul_shape(c, a, b));
}

struct System {
  bool upper, transpose, unit;
  std::int64_t n, columns;
};

/// Turns `width` columns of B into those of X, from the row that has one unknown on.
template <class T>
void substitute(const System& s, const T* a, std::int64_t width, T* x) {
  const bool from_end = s.upper != s.transpose;
  const std::int64_t down = s.transpose ? 1 : s.n;
  const std::int64_t along = s.transpose ? s.n : 1;
  auto row_at = [&](std::int64_t step) { return from_end ? s.n - 1 - step : step; };
  for (std::int64_t step = 0; step < s.n; ++step) {
    const std::int64_t i = row_at(step);
    T* row = x + i * s.columns;
    for (std::int64_t before = 0; before < step; ++before) {
      const std::int64_t j = row_at(before);
      const T factor = a[i * down + j * along];
      const T* known = x + j * s.columns;
      for (std::int64_t k = 0; k < width; ++k) row[k] -= factor * known[k];
    }
    if (s.unit) continue;
    for (std::int64_t k = 0; k < width; ++k) row[k] /= a[i * (s.n + 1)];
  }
}

/// Which of an operand's matrices goes with each of the result's.
std::vector<std::int64_t> matrices_of(const Dims& operand, const Dims& result) {
  const Dims from(operand.begin(), operand.end() - 2);
  const Dims to(result.begin(), result.end() - 2);
  const Dims strides = broadcast_strides(from, to);
  const Dims wholes = strides_of(to);
  std::vector<std::int64_t> places(static_cast<std::size_t>(element_count(to)));
  for (std::size_t m = 0; m < places.size(); ++m) {
    for (std::size_t axis = 0; axis < to.size(); ++axis) {
      places[m] += static_cast<std::int64_t>(m) / wholes[axis] % to[axis] * strides[axis];
    }
  }
  return places;
}

Kernel prepare(PrepareContext& c) {
  constexpr std::int64_t kWidth = 64;  // columns that stay in the cache while the rows are walked
  const DType dtype = c.in(0).dtype;
  const Dims& dims = c.out(0).dims;
  const System s{c.node.attr_int("upper", 0) != 0, c.node.attr_int("transpose", 0) != 0,
                 c.node.attr_int("unit", 0) != 0, dims[dims.size() - 2], dims.back()};
  const std::int64_t strips = (s.columns + kWidth - 1) / kWidth;
  return [=, of_a = matrices_of(c.in(0).dims, dims), of_b = matrices_of(c.in(1).dims, dims)](const KernelArgs& args) {
    visit_real(dtype, [&]<class T>() {
      auto solve = [&](std::size_t matrix, std::int64_t first) {
        const std::int64_t width = std::min(kWidth, s.columns - first);
        const T* b = args.in<T>(1) + of_b[matrix] * s.n * s.columns + first;
        T* x = args.out<T>(0) + static_cast<std::int64_t>(matrix) * s.n * s.columns + first;
        for (std::int64_t i = 0; b != x && i < s.n; ++i) std::copy_n(b + i * s.columns, width, x + i * s.columns);
        substitute(s, args.in<T>(0) + of_a[matrix] * s.n * s.n, width, x);
      };
      parallel_for(static_cast<std::int64_t>(of_a.size()) * strips, grain_for(s.n * s.n * std::min(kWidth, s.columns)),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                       solve(static_cast<std::size_t>(i / strips), i % strips * kWidth);
                     }
                   });
    });
  };
}

/// dB solves the transposed system; dA = -dB X', of which the triangle that is read remains.
void gradient(GradientContext& g) {
  const std::int64_t upper = g.node.attr_int("upper", 0);
  const std::int64_t transpose = g.node.attr_int("transpose", 0);
  const std::int64_t unit = g.node.attr_int("unit", 0);
  Value* db = g.op("SolveTriangular", {g.x(0), g.dy()},
                   {{"upper", upper}, {"transpose", 1 - transpose}, {"unit", unit}}, "backpass");
  g.set_reduced(1, db);
  Value* product = transpose != 0 ? g.matmul(g.y(), swap_last_axes(g, db)) : g.matmul(db, swap_last_axes(g, g.y()));
  const std::int64_t diagonal = unit == 0 ? 0 : (upper != 0 ? 1 : -1);
  g.set_reduced(0, g.neg(g.op("Trilu", {product, g.b.integer(diagonal)}, {{"upper", upper}})));
}

const Register kOp({.name = "SolveTriangular",
                    .domain = "backpass",
                    .doc = "X of A X = B, or of A' X = B (transpose), for triangular A; batch axes broadcast",
                    .inputs = {2, 2},
                    .types = types::floats,
                    .infer = infer,
                    .prepare = prepare,
                    .gradient = gradient,
                    .half_through_float = true,
                    .in_place_input = 1});

}  // namespace
}  // namespace backpass
