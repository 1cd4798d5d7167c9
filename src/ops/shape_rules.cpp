#include "ops/shape_rules.hpp"

#include <algorithm>

namespace backpass::rules {

void same_as_input(InferContext& c) { c.set_type(0, c.type(0)); }

Shape broadcast(InferContext& c, const Shape& a, const Shape& b) {
  std::size_t rank = std::max(a.size(), b.size());
  Shape out(rank, Dim(1));
  for (std::size_t i = 0; i < rank; ++i) {
    const Dim x = i < rank - a.size() ? Dim(1) : a[i - (rank - a.size())];
    const Dim y = i < rank - b.size() ? Dim(1) : b[i - (rank - b.size())];
    const bool known = x.is_known() && y.is_known();
    c.require(!known || x == y || x.is(1) || y.is(1), "shapes ", shown(a), " and ", shown(b),
              " do not broadcast: extents ", shown(x), " and ", shown(y), " differ and neither is 1");
    const bool equal = !known && (are_equal_if_they_broadcast(x, y) || are_equal_if_they_broadcast(y, x));
    out[i] = equal ? c.unify(x, y, "extents") : backpass::broadcast(x, y);
  }
  return out;
}

void broadcast_inputs(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  Shape shape = c.shape(0);
  for (std::size_t i = 1; i < c.input_count(); ++i) {
    if (c.has_input(i)) shape = broadcast(c, shape, c.shape(i));
  }
  c.set_shape(0, std::move(shape));
}

void broadcast_to_bool(InferContext& c) {
  broadcast_inputs(c);
  c.set_dtype(0, DType::boolean);
}

}  // namespace backpass::rules
