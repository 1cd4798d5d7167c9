// AffineGrid: coordinates for GridSample that an affine map of the output gives.
#include <vector>

#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "ops/scalar_input.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.require(c.dtype(1) == DType::int64, "element type of size: got ", name_of(c.dtype(1)), ", expected int64");
  const Shape& theta = c.shape(0);
  c.require(theta.size() == 3, "rank of theta: got ", theta.size(), ", expected 3");
  const Dim& rows = theta[1];
  c.require(!rows.is_known() || rows.is(2) || rows.is(3), "rows of theta: got ", shown(rows), ", expected 2 or 3");
  if (!rows.is_known() && !c.maybe_ints(1)) return;
  const std::size_t count = rows.is_known() ? static_cast<std::size_t>(rows.value()) + 2 : c.maybe_ints(1)->size();
  const std::vector<Dim> size = list_input(c, 1, "size", count);
  c.require(size.size() == 4 || size.size() == 5, "size: got ", size.size(), " values, expected 4 or 5");
  const auto rank = static_cast<std::int64_t>(size.size()) - 2;
  c.unify(theta[1], rank, "rows of theta"), c.unify(theta[2], rank + 1, "columns of theta");
  Shape out{c.unify(theta[0], size[0], "batch of theta and size")};
  for (std::size_t i = 2; i < size.size(); ++i) {
    c.require(!size[i].is_known() || size[i].value() >= 0, "size: got ", shown(size[i]), ", expected 0 or more");
    out.push_back(size[i]);
  }
  out.push_back(rank);
  c.set_shape(0, std::move(out));
}

// Coordinates of an axis run from -1 to 1, at the corners or at the middles of the elements.
template <class T>
T coordinate(std::int64_t i, std::int64_t length, bool align_corners) {
  if (align_corners) return length == 1 ? T(-1) : T(-1) + 2 * static_cast<T>(i) / static_cast<T>(length - 1);
  return (2 * static_cast<T>(i) + 1) / static_cast<T>(length) - 1;
}

template <class T>
void run(const Dims& out, bool align_corners, const T* theta, T* grid) {
  const std::size_t rank = out.size() - 2;
  std::int64_t points = 1;
  for (std::size_t i = 1; i <= rank; ++i) points *= out[i];
  parallel_for(out[0] * points, grain_for(16), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      const T* map = theta + p / points * static_cast<std::int64_t>(rank * (rank + 1));
      T place[4] = {};  // x, y, (z,) 1: from the last axis on
      std::int64_t rest = p % points;
      for (std::size_t i = 0; i < rank; ++i) {
        const std::int64_t length = out[rank - i];
        place[i] = coordinate<T>(rest % length, length, align_corners);
        rest /= length;
      }
      place[rank] = 1;
      for (std::size_t row = 0; row < rank; ++row) {
        T sum = 0;
        for (std::size_t k = 0; k <= rank; ++k) sum += map[row * (rank + 1) + k] * place[k];
        grid[p * static_cast<std::int64_t>(rank) + static_cast<std::int64_t>(row)] = sum;
      }
    }
  });
}

Kernel prepare(PrepareContext& c) {
  const bool align_corners = c.node.attr_int("align_corners", 0) != 0;
  return [=, out = c.out(0).dims, dtype = c.in(0).dtype](const KernelArgs& args) {
    visit_real(dtype, [&]<class T>() { run<T>(out, align_corners, args.in<T>(0), args.out<T>(0)); });
  };
}

/// grid = place theta^T for each point, so that dtheta = dgrid^T place; the identity map gives the places.
void gradient(GradientContext& g) {
  const std::int64_t rank = g.rank(g.y()) - 2;
  Value* identity = g.op("EyeLike", {g.op("ConstantOfShape", {g.b.ints({rank, rank + 1})})},
                         {{"dtype", static_cast<std::int64_t>(g.dy()->type.dtype)}});
  Value* one = g.b.ints({1});
  Value* size = g.concat({one, g.slice(g.x(1), 1, rank + 2, 0)}, 0);
  Value* places =
      g.op("AffineGrid", {g.unsqueeze(identity, {0}), size}, {{"align_corners", g.node.attr_int("align_corners", 0)}});
  Value* flat = g.reshape(places, {-1, rank});
  Value* points = g.gather(g.op("Shape", {flat}), g.b.ints({0}), 0);
  Value* ones = g.op("Expand", {g.one(), g.concat({points, one}, 0)});
  Value* dy = g.reshape_to(g.dy(), g.concat({g.slice(g.shape_of(g.dy()), 0, 1, 0), points, g.b.ints({rank})}, 0));
  g.set(0, g.reshape_like(g.matmul(g.transpose(dy, {0, 2, 1}), g.concat({flat, ones}, 1)), g.x()));
}

const Register affine_grid{{.name = "AffineGrid",
                            .since = 20,
                            .doc = "Coordinates for GridSample that an affine map of the output gives.",
                            .inputs = {2, 2},
                            .types = types::floats,
                            .infer = infer,
                            .prepare = prepare,
                            .gradient = gradient,
                            .half_through_float = true}};

}  // namespace
}  // namespace backpass
