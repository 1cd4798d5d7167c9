// Slices whose bounds are numbers.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "graph/builder.hpp"

namespace backpass {

struct SliceAxes {
  static constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();

  std::vector<std::int64_t> axes;  ///< counted from the front
  std::vector<std::int64_t> starts, ends, steps;

  std::optional<std::size_t> find(std::int64_t axis) const;
  void erase(std::size_t i);
  void add(std::int64_t axis, std::int64_t start, std::int64_t end, std::int64_t step);
  /// starts, ends, axes and steps as a Slice reads them behind its tensor.
  std::vector<Value*> inputs(Builder& b, Value* x) const;
};

/// Bounds are counted from the front where the extent is known, or where they were anyway; nothing when they are no
/// numbers, or the node is no Slice.
std::optional<SliceAxes> slice_axes(const Node& node);

/// [start, end) with step 1, from the front.
bool is_plain_range(const SliceAxes& all, std::size_t i);

}  // namespace backpass
