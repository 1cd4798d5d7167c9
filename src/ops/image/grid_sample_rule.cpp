// GridSample written out in standard operators, step by step as its kernel works (ops/image/grid_sampler.hpp).
#include "ops/image/grid_sample_rule.hpp"

#include "gradient/activity.hpp"
#include "gradient/composite.hpp"
#include "gradient/sampling.hpp"
#include "gradient/standardize_rule.hpp"
#include "graph/op.hpp"
#include "ops/image/grid_sampler.hpp"

namespace backpass {
namespace {

using namespace grid_sample;

/// One spatial axis of X, whose elements lie at 0 ... length - 1.
class AxisWriter {
 public:
  AxisWriter(GradientContext& g, const Options& options, Value* x, std::int64_t axis, const Value* grid)
      : g_(g), o_(options), extent_(g.extent(x, axis)), length_(length_of(g, x, axis, grid)), like_(grid) {
    last_ = g.sub(length_, number(1));
    low_ = number(o_.align_corners ? 0 : -0.5);
    high_ = o_.align_corners ? last_ : g.sub(length_, number(0.5));
  }

  /// `n`: the grid's coordinates along this axis, [N, P].
  AxisReads reads(Value* n) {
    Value* x = g_.unsqueeze(coordinate(n), {-1});
    Value* below = g_.op("Floor", {x});
    Value* f = g_.sub(x, below);
    Value* first = g_.cast(below, DType::int64);
    if (o_.mode == Mode::nearest) return inside(first, g_.op("Expand", {number(1), g_.shape_of(x)}), 1);
    if (o_.mode == Mode::linear) {
      return inside(g_.add(first, g_.b.ints({0, 1})), g_.concat({g_.sub(number(1), f), f}, -1), 2);
    }
    Value* ahead = g_.sub(number(1), f);
    Value* weights =
        g_.concat({outer(g_.add(f, number(1))), inner(f), inner(ahead), outer(g_.add(ahead, number(1)))}, -1);
    return inside(g_.add(first, g_.b.ints({-1, 0, 1, 2})), weights, 4);
  }

 private:
  Value* number(double value) { return g_.number(value, like_); }

  Value* is_outside(Value* x) { return g_.op("Or", {g_.less(x, low_), g_.greater(x, high_)}); }

  Value* reflected(Value* x) {
    Value* range = g_.sub(high_, low_);
    Value* turn = g_.mul(g_.op("Max", {range, number(1)}), number(2));  // without a range all is `low`
    Value* distance = g_.op("Mod", {g_.op("Abs", {g_.sub(x, low_)}), turn}, {{"fmod", std::int64_t{1}}});
    Value* folded = g_.where(g_.greater(distance, range), g_.sub(g_.mul(range, number(2)), distance), distance);
    return g_.where(g_.greater(range, number(0)), g_.add(low_, folded), low_);
  }

  /// In elements, brought inside as the padding says. What is no number reads far outside.
  Value* coordinate(Value* n) {
    Value* none = g_.op("IsNaN", {n});
    n = g_.add(g_.where(none, number(0), n), number(1));
    Value* x = o_.align_corners ? g_.mul(g_.div(n, number(2)), last_)
                                : g_.div(g_.sub(g_.mul(n, length_), number(1)), number(2));
    if (o_.mode == Mode::nearest) x = g_.op("Round", {x});
    if (o_.padding == Padding::border) {
      x = g_.where(g_.less(x, low_), number(0), g_.where(g_.greater(x, high_), last_, x));
    }
    if (o_.padding == Padding::reflection) x = g_.where(is_outside(x), reflected(x), x);
    Value* end = g_.add(length_, number(4));
    x = g_.where(g_.less(x, number(-4)), number(-4), g_.where(g_.greater(x, end), end, x));
    none = g_.op("Or", {none, g_.op("IsNaN", {x})});
    return g_.where(none, g_.sub(number(-2), length_), x);
  }

  AxisReads inside(Value* index, Value* weight, std::int64_t count) {
    if (o_.padding == Padding::zeros) {
      weight = g_.where(is_within(g_, index, g_.b.integer(0), extent_), weight, number(0));
    }
    if (o_.padding == Padding::reflection) {
      Value* place = g_.cast_like(index, like_);
      index = g_.cast(g_.where(is_outside(place), reflected(place), place), DType::int64);
    }
    return {clamped(g_, index, extent_), weight, count};
  }

  /// Weights at distances up to 1, and between 1 and 2, of the cubic with a = -0.75.
  Value* inner(Value* v) {
    constexpr double a = -0.75;
    Value* slope = g_.sub(g_.mul(v, number(a + 2)), number(a + 3));
    return g_.add(g_.mul(g_.mul(slope, v), v), number(1));
  }
  Value* outer(Value* v) {
    constexpr double a = -0.75;
    Value* sum = g_.sub(g_.mul(v, number(a)), number(5 * a));
    sum = g_.add(g_.mul(sum, v), number(8 * a));
    return g_.sub(g_.mul(sum, v), number(4 * a));
  }

  GradientContext& g_;
  Options o_;
  Value* extent_;
  Value* length_;
  const Value* like_;
  Value* last_;
  Value* low_;
  Value* high_;
};

std::vector<Value*> write(Builder& b, const Node& node) {
  const ValueSet none;
  GradientContext g(b, node, {}, none);
  Value* x = widened(g, g.x(0));
  Value* grid = widened(g, g.x(1));
  const std::int64_t axes = g.rank(x) - 2;
  Value* extents = g.slice(g.shape_of(grid), 1, axes + 1, 0);
  Value* images = g.slice(g.shape_of(grid), 0, 1, 0);
  Value* count = g.op("ReduceProd", {extents}, {{"keepdims", std::int64_t{1}}});
  Value* points = g.reshape_to(grid, g.concat({images, count, g.b.ints({axes})}, 0));
  std::vector<AxisReads> reads;
  for (std::int64_t a = 0; a < axes; ++a) {  // coordinates run from the last axis on
    Value* along = g.gather(points, g.b.integer(axes - 1 - a), 2);
    reads.push_back(AxisWriter(g, options_of(node), x, a + 2, grid).reads(along));
  }
  Value* y = g.transpose(interpolated(g, x, reads), {0, 2, 1});
  y = g.reshape_to(y, g.concat({g.slice(g.shape_of(x), 0, 2, 0), extents}, 0));
  return {g.cast_like(y, node.inputs[0])};
}

}  // namespace

void grid_sample_gradient(GradientContext& g) { composite_gradient(g, write); }

}  // namespace backpass
