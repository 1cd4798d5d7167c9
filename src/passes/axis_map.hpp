// Where an axis of a node's result comes from: which axis of which input runs along with it. A node that has a map for
// an axis computes every place along it from the same place of its inputs alone, so that selecting places of the result
// and of these inputs gives the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "graph/graph.hpp"
#include "passes/pattern.hpp"

namespace backpass {

/// Per input: the axis that goes with it, or nothing for inputs that are read whole for every place.
using AxisMap = std::vector<std::optional<std::size_t>>;

/// Of all outputs of the node, which have the same axis wherever there are several. Nothing where places depend on
/// others, or where it is not known.
std::optional<AxisMap> axis_map(const Node& node, std::size_t axis);

/// Contents of a small integer tensor, if they are known as numbers.
std::optional<std::vector<std::int64_t>> numbers_in(const Value* v);

using pattern::is_op;

/// An axis as nodes name it, counted from the front.
inline std::size_t from_front(std::int64_t axis, std::size_t rank) {
  return static_cast<std::size_t>(axis < 0 ? axis + static_cast<std::int64_t>(rank) : axis);
}

}  // namespace backpass
