// The gradient of Slice: zeros around dy, or between its elements.
#include "ops/movement/slice_rule.hpp"

#include <algorithm>
#include <numeric>

#include "gradient/positions.hpp"

namespace backpass {
namespace {

/// The sliced axes when they are known and every step is 1.
std::optional<std::vector<std::int64_t>> unit_step_axes(const GradientContext& g) {
  if (g.has_input(4)) {
    const auto& steps = g.x(4)->constant;
    if (!steps) return std::nullopt;
    const std::vector<std::int64_t> numbers = steps->to_ints();
    if (std::count(numbers.begin(), numbers.end(), 1) != std::ssize(numbers)) return std::nullopt;
  }
  if (g.has_input(3)) {
    if (!g.x(3)->constant) return std::nullopt;
    return g.x(3)->constant->to_ints();
  }
  const auto& shape = g.x(1)->type.shape;
  if (!shape || !shape->at(0).is_known()) return std::nullopt;
  std::vector<std::int64_t> leading(static_cast<std::size_t>(shape->at(0).value()));
  std::iota(leading.begin(), leading.end(), 0);
  return leading;
}

/// Where the slice begins and how much lies behind it, along each axis; in numbers when all are known.
Value* pads(GradientContext& g, const std::vector<std::int64_t>& axes) {
  auto whole = g.known_dims(g.x());
  auto part = g.known_dims(g.dy());
  if (whole && part && g.x(1)->constant) {
    std::vector<std::int64_t> begins = g.x(1)->constant->to_ints();
    std::vector<std::int64_t> ends;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      const auto axis = static_cast<std::size_t>(axes[i] < 0 ? axes[i] + std::ssize(*whole) : axes[i]);
      const std::int64_t extent = (*whole)[axis];
      begins[i] = std::clamp<std::int64_t>(begins[i] < 0 ? begins[i] + extent : begins[i], 0, extent);
      ends.push_back(extent - begins[i] - (*part)[axis]);
    }
    begins.insert(begins.end(), ends.begin(), ends.end());
    return g.b.ints(std::move(begins));
  }
  Value* at = g.b.ints(axes);
  Value* extents = g.gather(g.shape_of(g.x()), at, 0);
  Value* starts = g.cast(g.x(1), DType::int64);
  Value* zero = g.b.integer(0);
  Value* wrapped = g.where(g.less(starts, zero), g.add(starts, extents), starts);
  Value* begins = g.op("Min", {g.op("Max", {wrapped, zero}), extents});
  Value* ends = g.sub(g.sub(extents, begins), g.gather(g.shape_of(g.dy()), at, 0));
  return g.concat({begins, ends}, 0);
}

}  // namespace

void slice_gradient(GradientContext& g) {
  if (auto axes = unit_step_axes(g)) {
    if (axes->empty()) return g.set(0, g.dy());
    Value* zeros = pads(g, *axes);
    return g.set(0, g.op("Pad", {g.dy(), zeros, nullptr, g.b.ints(*std::move(axes))}));
  }
  std::vector<Value*> inputs = g.node.inputs;
  inputs[0] = positions_of(g, g.x());
  g.set(0, add_at(g, g.op("Slice", std::move(inputs)), g.dy(), g.x()));
}

void slice_fused_gradient(GradientContext& g) {
  std::vector<Value*> inputs{g.dy(), g.shape_of(g.x())};
  inputs.insert(inputs.end(), g.node.inputs.begin() + 1, g.node.inputs.end());
  g.set(0, g.op("SliceGrad", std::move(inputs), {}, "com.microsoft"));
}

}  // namespace backpass
