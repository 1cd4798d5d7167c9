// Flatten: a matrix of everything before an axis by everything from it on.
#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "ops/movement/movement.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  const Shape& in = c.shape(0);
  auto rank = static_cast<std::int64_t>(in.size());
  std::int64_t axis = c.node.attr_int("axis", 1);
  c.require(axis >= -rank && axis <= rank, "axis: got ", axis, ", expected one in [", -rank, ", ", rank, "]");
  auto split = static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
  std::span<const Dim> extents(in);
  c.set_shape(0, {product(extents.first(split)), product(extents.subspan(split))});
}

void same_elements_gradient(GradientContext& g) { g.set(0, g.reshape_like(g.dy(), g.x())); }

const Register flatten{{.name = "Flatten",
                        .since = 25,
                        .doc = "A matrix: the axes before `axis` by the others.",
                        .types = movement::any_type,
                        .infer = infer,
                        .prepare = movement::prepare_copy,
                        .gradient = same_elements_gradient,
                        .is_view = true}};

}  // namespace
}  // namespace backpass
