#include "gradient/sampling.hpp"

#include "gradient/positions.hpp"

namespace backpass {
namespace {

using Ints = std::vector<std::int64_t>;

/// 0, 2, 3, ..., 1: channels last; and back.
Ints channels_last(std::int64_t rank) {
  Ints order{0};
  for (std::int64_t i = 2; i < rank; ++i) order.push_back(i);
  order.push_back(1);
  return order;
}

Ints channels_second(std::int64_t rank) {
  Ints order{0, rank - 1};
  for (std::int64_t i = 1; i < rank - 1; ++i) order.push_back(i);
  return order;
}

Value* product(GradientContext& g, Value* ints) { return g.op("ReduceProd", {ints}, {{"keepdims", std::int64_t{0}}}); }

}  // namespace

Value* length_of(GradientContext& g, Value* a, std::int64_t axis, const Value* like) {
  g.rank(a);
  const Dim& extent = a->type.shape->at(static_cast<std::size_t>(axis));
  if (extent.is_known()) return g.number(static_cast<double>(extent.value()), like);
  return g.cast_like(g.extent(a, axis), like);
}

Value* is_within(GradientContext& g, Value* a, Value* low, Value* high) {
  return g.op("And", {g.op("GreaterOrEqual", {a, low}), g.less(a, high)});
}

Value* clamped(GradientContext& g, Value* a, Value* extent) {
  return g.op("Max", {g.op("Min", {a, g.sub(extent, g.b.integer(1))}), g.b.integer(0)});
}

Value* rows_of(GradientContext& g, Value* x) {
  Value* channels = g.slice(g.shape_of(x), 1, 2, 0);
  Value* moved = g.transpose(x, channels_last(g.rank(x)));
  Value* places = product(g, g.slice(g.shape_of(moved), 0, g.rank(x) - 1, 0));
  return g.reshape_to(moved, g.concat({g.reshape(places, {1}), channels}, 0));
}

Value* from_rows(GradientContext& g, Value* rows, Value* x) {
  const std::int64_t rank = g.rank(x);
  Value* shape = g.gather(g.shape_of(x), g.b.ints(channels_last(rank)), 0);
  return g.transpose(g.reshape_to(rows, shape), channels_second(rank));
}

Value* interpolated(GradientContext& g, Value* x, const std::vector<AxisReads>& axes) {
  Value* index = nullptr;
  Value* weight = nullptr;
  std::int64_t count = 1;
  Value* plane = g.b.integer(1);
  for (std::size_t a = 0; a < axes.size(); ++a) {
    Value* extent = g.extent(x, static_cast<std::int64_t>(a) + 2);
    plane = g.mul(plane, extent);
    count *= axes[a].count;
    if (index == nullptr) {
      index = axes[a].index;
      weight = axes[a].weight;
      continue;
    }
    index = g.add(g.unsqueeze(g.mul(index, extent), {-1}), g.unsqueeze(axes[a].index, {2}));
    index = g.reshape(index, {0, 0, count});
    weight = g.mul(g.unsqueeze(weight, {-1}), g.unsqueeze(axes[a].weight, {2}));
    weight = g.reshape(weight, {0, 0, count});
  }
  Value* image = g.mul(count_up(g, g.extent(x, 0)), plane);
  index = g.add(index, g.unsqueeze(image, {1, 2}));
  Value* read = g.gather(rows_of(g, x), index, 0);  // [N, P, count, C]
  return g.squeeze(g.matmul(g.unsqueeze(g.cast_like(weight, x), {2}), read), {2});
}

}  // namespace backpass
