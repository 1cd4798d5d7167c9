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

namespace backpass {

Dims broadcast_dims(std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
  std::size_t rank = std::max(a.size(), b.size());
  Dims out(rank, 1);
  for (std::size_t i = 0; i < rank; ++i) {
    std::int64_t x = i < rank - a.size() ? 1 : a[i - (rank - a.size())];
    std::int64_t y = i < rank - b.size() ? 1 : b[i - (rank - b.size())];
    if (x != y && x != 1 && y != 1) fail("shapes ", to_string(a), " and ", to_string(b), " do not broadcast");
    out[i] = x == 1 ? y : x;
  }
  return out;
}

Dims strides_of(std::span<const std::int64_t> dims) {
  Dims strides(dims.size(), 1);
  for (std::size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

Dims broadcast_strides(std::span<const std::int64_t> from, std::span<const std::int64_t> to) {
  Dims own = strides_of(from);
  Dims strides(to.size(), 0);
  std::size_t offset = to.size() - from.size();
  for (std::size_t i = 0; i < from.size(); ++i) strides[offset + i] = from[i] == 1 ? 0 : own[i];
  return strides;
}

std::int64_t product(std::span<const std::int64_t> dims, std::size_t begin, std::size_t end) {
  std::int64_t p = 1;
  for (std::size_t i = begin; i < end; ++i) p *= dims[i];
  return p;
}

}  // namespace backpass
