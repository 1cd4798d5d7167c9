// DeformConv written out in standard operators: every kernel position reads its image between elements, as GridSample
// does, and the results are contracted with the weights.
#include "ops/convolution/deform_conv_rule.hpp"

#include "gradient/activity.hpp"
#include "gradient/composite.hpp"
#include "gradient/positions.hpp"
#include "gradient/sampling.hpp"
#include "gradient/standardize_rule.hpp"
#include "graph/op.hpp"
#include "ops/shape_rules.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kX, kW, kOffset, kBias, kMask };
using Ints = std::vector<std::int64_t>;

class DeformConvWriter {
 public:
  DeformConvWriter(GradientContext& g, Value* y) : g_(g), y_(y) {
    x_ = widened(g, g.x(kX));
    w_ = widened(g, g.x(kW));
    axes_ = g.rank(x_) - 2;
    g.rank(w_);
    Ints kernel;
    for (std::int64_t a = 0; a < axes_; ++a) {
      const Dim& extent = w_->type.shape->at(static_cast<std::size_t>(a) + 2);
      kernel.push_back(extent.is_known() ? extent.value() : 1);
    }
    windows_ = rules::windows(g.node, kernel, std::span(*x_->type.shape).subspan(2));
    groups_ = g.node.attr_int("group", 1);
    offset_groups_ = g.node.attr_int("offset_group", 1);
    batch_ = part_of(x_, 0, 1);
    channels_ = part_of(x_, 1, 2);
    kernel_ = part_of(w_, 2, axes_ + 2);
    out_ = part_of(y_, 2, axes_ + 2);
    positions_ = product(kernel_);
    places_ = product(out_);
  }

  Value* write() {
    Value* read = interpolated(g_, by_offset_group(), corners());  // [N * groups, positions * places, channels]
    if (g_.has_input(kMask)) {
      Value* shape = g_.concat({images(), g_.mul(positions_, places_), g_.b.ints({1})}, 0);
      read = g_.mul(read, g_.reshape_to(widened(g_, g_.x(kMask)), shape));
    }
    Value* y = g_.matmul(weights(), columns(read));  // [groups, M / groups, N * places]
    y = g_.transpose(g_.reshape_to(y, g_.concat({part_of(w_, 0, 1), batch_, places_}, 0)), {1, 0, 2});
    y = g_.reshape_to(y, g_.shape_of(y_));
    if (g_.has_input(kBias)) {
      Ints shape(static_cast<std::size_t>(axes_), 1);
      shape.insert(shape.begin(), -1);
      y = g_.add(y, g_.reshape(widened(g_, g_.x(kBias)), std::move(shape)));
    }
    return g_.cast_like(y, g_.x(kX));
  }

 private:
  Value* part_of(Value* a, std::int64_t begin, std::int64_t end) { return g_.slice(g_.shape_of(a), begin, end, 0); }
  Value* product(Value* ints) { return g_.op("ReduceProd", {ints}, {{"keepdims", std::int64_t{1}}}); }
  Value* over(Value* count, std::int64_t groups) { return g_.div(count, g_.b.ints({groups})); }
  Value* images() { return g_.mul(batch_, g_.b.ints({offset_groups_})); }

  /// Channels that share their offsets, as images of their own.
  Value* by_offset_group() {
    Value* extents = part_of(x_, 2, axes_ + 2);
    return g_.reshape_to(x_, g_.concat({images(), over(channels_, offset_groups_), extents}, 0));
  }

  /// 0 ... extent-1 in steps, along the axis that `trailing` axes follow.
  Value* ramp(Value* extent, std::int64_t step, std::int64_t begin, std::int64_t trailing, const Value* like) {
    Value* numbers = g_.add(g_.mul(count_up(g_, g_.squeeze(extent, {0})), g_.b.integer(step)), g_.b.integer(begin));
    Value* extents = g_.concat({extent, g_.b.ints(Ints(static_cast<std::size_t>(trailing), 1))}, 0);
    return g_.cast_like(trailing == 0 ? numbers : g_.reshape_to(numbers, extents), like);
  }

  std::vector<AxisReads> corners() {
    Value* offset = widened(g_, g_.x(kOffset));
    Value* shape = g_.concat({images(), kernel_, g_.b.ints({axes_}), out_}, 0);
    Value* moved = g_.reshape_to(offset, shape);
    Value* flat = g_.concat({images(), g_.mul(positions_, places_), g_.b.ints({1})}, 0);
    std::vector<AxisReads> reads;
    for (std::int64_t a = 0; a < axes_; ++a) {
      const rules::Window& w = windows_[static_cast<std::size_t>(a)];
      Value* point = g_.gather(moved, g_.b.integer(a), axes_ + 1);
      point = g_.add(point, ramp(g_.slice(kernel_, a, a + 1, 0), w.dilation, 0, 2 * axes_ - 1 - a, offset));
      point = g_.add(point, ramp(g_.slice(out_, a, a + 1, 0), w.stride, -w.pad_begin, axes_ - 1 - a, offset));
      reads.push_back(neighbours(g_.reshape_to(point, flat), a + 2));
    }
    return reads;
  }

  /// The elements before and after each point; those outside count nothing.
  AxisReads neighbours(Value* point, std::int64_t axis) {
    auto number = [&](double v) { return g_.number(v, point); };
    Value* length = length_of(g_, x_, axis, point);
    Value* touches = g_.op("And", {g_.greater(point, number(-1)), g_.less(point, length)});
    point = g_.where(touches, point, number(-2));
    Value* below = g_.op("Floor", {point});
    Value* fraction = g_.sub(point, below);
    Value* index = g_.add(g_.cast(below, DType::int64), g_.b.ints({0, 1}));
    Value* weight = g_.concat({g_.sub(number(1), fraction), fraction}, -1);
    Value* extent = g_.extent(x_, axis);
    weight = g_.where(is_within(g_, index, g_.b.integer(0), extent), weight, number(0));
    return {clamped(g_, index, extent), weight, 2};
  }

  /// [N * offset groups, positions * places, channels] as [groups, channels * positions, N * places].
  Value* columns(Value* read) {
    Value* split =
        g_.concat({batch_, g_.b.ints({offset_groups_}), positions_, places_, over(channels_, offset_groups_)}, 0);
    Value* moved = g_.transpose(g_.reshape_to(read, split), {1, 4, 2, 0, 3});
    Value* rows = g_.mul(over(channels_, groups_), positions_);
    return g_.reshape_to(moved, g_.concat({g_.b.ints({groups_}), rows, g_.mul(batch_, places_)}, 0));
  }

  Value* weights() {
    Value* rows = g_.mul(part_of(w_, 1, 2), positions_);
    return g_.reshape_to(w_, g_.concat({g_.b.ints({groups_}), over(part_of(w_, 0, 1), groups_), rows}, 0));
  }

  GradientContext& g_;
  Value* y_;
  Value* x_;
  Value* w_;
  std::int64_t axes_;
  std::int64_t groups_;
  std::int64_t offset_groups_;
  std::vector<rules::Window> windows_;
  // 1-D int64
  Value* batch_;
  Value* channels_;
  Value* kernel_;
  Value* out_;
  Value* positions_;
  Value* places_;
};

std::vector<Value*> write(Builder& b, const Node& node) {
  const ValueSet none;
  GradientContext g(b, node, {}, none);
  return {DeformConvWriter(g, node.outputs[0]).write()};
}

}  // namespace

void deform_conv_gradient(GradientContext& g) { composite_gradient(g, write); }

}  // namespace backpass
