// Rules for inputs that hold one number, or a list of them, by which other extents are made.
#pragma once

#include <string_view>
#include <vector>

#include "graph/op.hpp"

namespace backpass {

/// Contents of an integer input of rank 0 or 1 with `count` values; symbols where they are not known.
inline std::vector<Dim> list_input(InferContext& c, std::size_t input, std::string_view name, std::size_t count) {
  c.require(types::indices.has(c.dtype(input)), "element type of ", name, ": got ", name_of(c.dtype(input)),
            ", expected int32 or int64");
  if (c.knows_shape(input)) {
    const Shape& shape = c.shape(input);
    const Dim size = product(shape);
    c.require(shape.size() <= 1, "rank of ", name, ": got ", shape.size(), ", expected at most 1");
    c.require(!size.is_known() || size.is(static_cast<std::int64_t>(count)), "values of ", name, ": got ", shown(size),
              ", expected ", count);
  }
  if (auto values = c.maybe_ints(input)) {
    c.require(values->size() == count, "values of ", name, ": got ", values->size(), ", expected ", count);
    return *std::move(values);
  }
  std::vector<Dim> unknown;
  for (std::size_t i = 0; i < count; ++i) unknown.push_back(c.data_dependent(concat(name, i)));
  return unknown;
}

inline Dim scalar_input(InferContext& c, std::size_t input, std::string_view name) {
  return list_input(c, input, name, 1)[0];
}

}  // namespace backpass
