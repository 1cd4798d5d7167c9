#include "passes/slice_axes.hpp"

#include <algorithm>

#include "passes/axis_map.hpp"

namespace backpass {
namespace {

/// Counted from the front, and not beyond the end.
std::int64_t placed(std::int64_t bound, const Dim& extent) {
  if (!extent.is_known()) return bound;
  const std::int64_t n = extent.value();
  return std::clamp<std::int64_t>(bound < 0 ? std::max(bound, -n) + n : bound, 0, n);
}

}  // namespace

std::optional<std::size_t> SliceAxes::find(std::int64_t axis) const {
  const auto at = std::find(axes.begin(), axes.end(), axis);
  return at == axes.end() ? std::nullopt : std::optional(static_cast<std::size_t>(at - axes.begin()));
}

void SliceAxes::erase(std::size_t i) {
  for (auto* list : {&axes, &starts, &ends, &steps}) list->erase(list->begin() + static_cast<std::ptrdiff_t>(i));
}

void SliceAxes::add(std::int64_t axis, std::int64_t start, std::int64_t end, std::int64_t step) {
  axes.push_back(axis);
  starts.push_back(start);
  ends.push_back(end);
  steps.push_back(step);
}

std::vector<Value*> SliceAxes::inputs(Builder& b, Value* x) const {
  std::vector<Value*> reads{x, b.ints(starts), b.ints(ends), b.ints(axes)};
  const bool has_steps = std::any_of(steps.begin(), steps.end(), [](std::int64_t s) { return s != 1; });
  if (has_steps) reads.push_back(b.ints(steps));
  return reads;
}

std::optional<SliceAxes> slice_axes(const Node& node) {
  if (!is_op(&node, "Slice") || node.input(0) == nullptr || !node.input(0)->type.shape) return std::nullopt;
  const Shape& shape = *node.input(0)->type.shape;
  const auto starts = numbers_in(node.input(1));
  const auto ends = numbers_in(node.input(2));
  if (!starts || !ends) return std::nullopt;
  std::vector<std::int64_t> leading(starts->size());
  for (std::size_t i = 0; i < leading.size(); ++i) leading[i] = static_cast<std::int64_t>(i);
  const auto axes = node.input(3) != nullptr ? numbers_in(node.input(3)) : leading;
  const auto steps =
      node.input(4) != nullptr ? numbers_in(node.input(4)) : std::vector<std::int64_t>(leading.size(), 1);
  if (!axes || !steps) return std::nullopt;
  SliceAxes all;
  for (std::size_t i = 0; i < axes->size(); ++i) {
    const std::size_t axis = from_front((*axes)[i], shape.size());
    const bool is_forward = (*steps)[i] > 0;
    all.add(static_cast<std::int64_t>(axis), is_forward ? placed((*starts)[i], shape[axis]) : (*starts)[i],
            is_forward ? placed((*ends)[i], shape[axis]) : (*ends)[i], (*steps)[i]);
  }
  return all;
}

bool is_plain_range(const SliceAxes& all, std::size_t i) {
  return all.steps[i] == 1 && all.starts[i] >= 0 && all.ends[i] >= all.starts[i];
}

}  // namespace backpass
