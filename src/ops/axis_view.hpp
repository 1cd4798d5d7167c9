// A tensor seen as [outer, extent, inner] around one axis.
#pragma once

#include <cstdint>

#include "graph/op.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {

struct AxisView {
  std::int64_t outer, extent, inner;
};

/// Of input `input`; fails with a message when the axis is out of range.
inline AxisView axis_view(const PrepareContext& c, std::int64_t axis, std::size_t input = 0) {
  const Dims& dims = c.in(input).dims;
  std::size_t i = c.axis(axis, dims.size());
  return {product(dims, 0, i), dims[i], product(dims, i + 1, dims.size())};
}

/// Input `input` seen as rows: everything from `axis` on is one row.
struct RowView {
  std::int64_t rows, n;
};

inline RowView row_view(const PrepareContext& c, std::int64_t axis, std::size_t input = 0) {
  const Dims& dims = c.in(input).dims;
  std::size_t i = c.axis(axis, dims.size());
  return {product(dims, 0, i), product(dims, i, dims.size())};
}

}  // namespace backpass
