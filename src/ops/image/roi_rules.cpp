// Every output element is made of places of the feature map that follow from its rectangle: RoiAlign is written out in
// standard operators over these places, MaxRoiPool's gradients are added up at them. As many places are laid out for
// each element as the largest of them has; the rest are marked.
#include "ops/image/roi_rules.hpp"

#include <limits>

#include "gradient/activity.hpp"
#include "gradient/composite.hpp"
#include "gradient/positions.hpp"
#include "gradient/sampling.hpp"
#include "gradient/standardize_rule.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kX, kRois, kBatch };

/// What the cells of the rectangles read along one axis: [R, cells, places], or [R, cells, places, neighbours].
struct AxisCells {
  Value* index;
  Value* weight;    ///< null: all 1
  Value* is_place;  ///< false where a cell has fewer
};

/// Column i of the rectangles, [R].
Value* column(GradientContext& g, Value* rois, std::int64_t i) { return g.gather(rois, g.b.integer(i), 1); }

/// 0 ... count-1 as numbers of the element type of `like`.
Value* numbers(GradientContext& g, Value* count, const Value* like) { return g.cast_like(count_up(g, count), like); }

/// The largest of some int64, at least 1; 0-D.
Value* most_of(GradientContext& g, Value* counts) {
  Value* all = g.concat({g.reshape(counts, {-1}), g.b.ints({1})}, 0);
  return g.op("ReduceMax", {all}, {{"keepdims", std::int64_t{0}}});
}

/// All of this together: [R, cells, K] with the places of both axes multiplied out, rows first.
struct Places {
  Value* index;
  Value* weight;
  Value* is_place;
};

/// `y` and `x` broadcast against each other; flattened to [R, cells, K].
Value* flattened(GradientContext& g, Value* joint, std::int64_t cells) {
  Value* shape = g.shape_of(joint);
  Value* tail = g.slice(shape, 3, g.rank(joint), 0);
  Value* places = g.op("ReduceProd", {tail}, {{"keepdims", std::int64_t{1}}});
  return g.reshape_to(joint, g.concat({g.slice(shape, 0, 1, 0), g.b.ints({cells}), places}, 0));
}

/// Scatters what each element gives to each of its places: shares [R, cells, K, C].
Value* gathered_up(GradientContext& g, Value* index, Value* shares, Value* x) {
  Value* rows = rows_of(g, x);
  return g.cast_like(from_rows(g, add_slices_at(g, index, shares, rows, 0), x), g.x(kX));
}

/// dy [R, C, height, width] as [R, cells, 1, C].
Value* by_cell(GradientContext& g, std::int64_t cells) {
  Value* dy = widened(g, g.dy());
  Value* shape = g.shape_of(dy);
  Value* flat = g.reshape_to(dy, g.concat({g.slice(shape, 0, 2, 0), g.b.ints({cells})}, 0));
  return g.unsqueeze(g.transpose(flat, {0, 2, 1}), {2});
}

/// Where the first of the largest is: [R, cells, K, C] of what is there, true once along K.
Value* is_first_largest(GradientContext& g, Value* values, Value* is_place) {
  Value* lowest = g.number(-std::numeric_limits<double>::infinity(), values);
  Value* candidates = g.where(is_place, values, lowest);
  Value* best = g.op("ArgMax", {candidates}, {{"axis", std::int64_t{2}}, {"keepdims", std::int64_t{1}}});
  Value* all = g.unsqueeze(count_up(g, g.extent(values, 2)), {1});
  return g.op("And", {g.equal(best, all), is_place});
}

// ---- RoiAlign

struct AlignAxis {
  Value* begin;  ///< of the rectangles, [R]
  Value* size;
  std::int64_t cells;
  std::int64_t axis;  ///< of X
};

/// Samples per cell along the axis, [R] int64: ceil of the cell's size unless a number is given.
Value* sample_counts(GradientContext& g, Value* cell) {
  const std::int64_t ratio = g.node.attr_int("sampling_ratio", 0);
  if (ratio > 0) return g.op("Expand", {g.b.integer(ratio), g.shape_of(cell)});
  return g.op("Max", {g.cast(g.op("Ceil", {cell}), DType::int64), g.b.integer(0)});
}

/// Both neighbours of each sample: [R, cells, samples, 2]; `counts` of the samples as floats, [R].
AxisCells aligned(GradientContext& g, Value* x, const AlignAxis& a, Value*& counts) {
  auto number = [&](double v) { return g.number(v, a.size); };
  auto column_of = [&](Value* v) { return g.unsqueeze(v, {1, 2}); };
  Value* cell = g.div(a.size, number(static_cast<double>(a.cells)));
  Value* whole = sample_counts(g, cell);
  Value* most = most_of(g, whole);
  counts = g.cast_like(whole, cell);
  Value* cells = g.unsqueeze(numbers(g, g.b.integer(a.cells), cell), {1});
  Value* sample = numbers(g, most, cell);
  Value* is_sample = g.less(count_up(g, most), column_of(whole));
  Value* safe = g.op("Max", {column_of(counts), number(1)});
  Value* within = g.div(g.mul(g.add(sample, number(0.5)), column_of(cell)), safe);
  Value* at = g.add(g.add(column_of(a.begin), g.mul(cells, column_of(cell))), within);
  Value* length = length_of(g, x, a.axis, cell);
  Value* touches = g.op("And", {g.op("GreaterOrEqual", {at, number(-1)}), g.op("LessOrEqual", {at, length})});
  Value* last = g.sub(length, number(1));
  at = g.where(touches, g.op("Max", {g.op("Min", {at, last}), number(0)}), number(0));
  Value* low = g.op("Floor", {at});
  Value* fraction = g.unsqueeze(g.sub(at, low), {-1});
  Value* index = g.add(g.unsqueeze(g.cast(low, DType::int64), {-1}), g.b.ints({0, 1}));
  Value* weight = g.concat({g.sub(number(1), fraction), fraction}, -1);
  weight = g.where(g.unsqueeze(g.op("And", {touches, is_sample}), {-1}), weight, number(0));
  return {clamped(g, index, g.extent(x, a.axis)), weight, g.unsqueeze(is_sample, {-1})};
}

/// [R, height, width, rows, columns, 2, 2]: samples before neighbours, as the kernel meets them.
Places joined(GradientContext& g, Value* x, const AxisCells& y, const AxisCells& along, std::int64_t cells) {
  auto down = [&](Value* v) { return g.unsqueeze(v, {2, 4, 6}); };
  auto across = [&](Value* v) { return g.unsqueeze(v, {1, 3, 5}); };
  Value* index = g.add(g.mul(down(y.index), g.extent(x, 3)), across(along.index));
  Value* is_place = g.op("And", {down(y.is_place), across(along.is_place)});
  is_place = g.op("Expand", {is_place, g.shape_of(index)});
  return {flattened(g, index, cells), flattened(g, g.mul(down(y.weight), across(along.weight)), cells),
          flattened(g, is_place, cells)};
}

/// y [R, cells, C] as the node's output has it.
Value* as_planes(GradientContext& g, Value* y, std::int64_t height, std::int64_t width) {
  Value* planes = g.transpose(y, {0, 2, 1});
  return g.reshape_to(planes, g.concat({g.slice(g.shape_of(planes), 0, 2, 0), g.b.ints({height, width})}, 0));
}

std::vector<Value*> write_align(Builder& b, const Node& node) {
  const ValueSet none;
  GradientContext g(b, node, {}, none);
  Value* x = widened(g, g.x(kX));
  Value* rois = widened(g, g.x(kRois));
  const std::int64_t height = node.attr_int("output_height", 1);
  const std::int64_t width = node.attr_int("output_width", 1);
  const bool half_pixel = node.attr_string("coordinate_transformation_mode", "half_pixel") == "half_pixel";
  Value* corners =
      g.sub(g.mul(rois, g.number(node.attr_float("spatial_scale", 1), rois)), g.number(half_pixel ? 0.5 : 0.0, rois));
  auto axis = [&](std::int64_t i, std::int64_t cells) {
    Value* begin = column(g, corners, i);
    Value* size = g.sub(column(g, corners, i + 2), begin);
    return AlignAxis{begin, half_pixel ? size : g.op("Max", {size, g.one(size)}), cells, 3 - i};
  };
  Value* rows = nullptr;
  Value* columns = nullptr;
  const AxisCells down = aligned(g, x, axis(1, height), rows);
  const AxisCells across = aligned(g, x, axis(0, width), columns);
  const Places p = joined(g, x, down, across, height * width);
  Value* plane = g.mul(g.extent(x, 2), g.extent(x, 3));
  Value* index = g.add(p.index, g.mul(g.unsqueeze(g.x(kBatch), {1, 2}), plane));
  Value* values = g.mul(g.gather(rows_of(g, x), index, 0), g.unsqueeze(g.cast_like(p.weight, x), {3}));
  Value* y = nullptr;
  if (node.attr_string("mode", "avg") == "max") {
    Value* is_best = is_first_largest(g, values, g.unsqueeze(p.is_place, {3}));
    y = g.sum(g.where(is_best, values, g.zero(values)), {2}, false);
  } else {
    Value* count = g.op("Max", {g.mul(rows, columns), g.one(rows)});
    y = g.div(g.sum(values, {2}, false), g.unsqueeze(g.cast_like(count, x), {1, 2}));
  }
  return {g.cast_like(as_planes(g, y, height, width), node.inputs[kX])};
}

}  // namespace

void roi_align_gradient(GradientContext& g) { composite_gradient(g, write_align); }

// ---- MaxRoiPool

namespace {

/// Away from zero at halves, which Round is not.
Value* rounded(GradientContext& g, Value* a) {
  Value* size = g.op("Floor", {g.add(g.op("Abs", {a}), g.number(0.5, a))});
  return g.mul(g.op("Sign", {a}), size);
}

/// begin, end: first and last element of the rectangles, [R].
AxisCells pooled(GradientContext& g, Value* x, Value* begin, Value* end, std::int64_t cells, std::int64_t axis) {
  auto number = [&](double v) { return g.number(v, begin); };
  Value* size = g.op("Max", {g.add(g.sub(end, begin), number(1)), number(1)});
  Value* cell = g.unsqueeze(g.div(size, number(static_cast<double>(cells))), {1});
  Value* numbered = numbers(g, g.b.integer(cells), begin);
  Value* length = length_of(g, x, axis, begin);
  auto inside = [&](Value* v) {
    v = g.add(g.unsqueeze(begin, {1}), v);
    return g.unsqueeze(g.cast(g.op("Max", {g.op("Min", {v, length}), number(0)}), DType::int64), {2});
  };
  Value* first = inside(g.op("Floor", {g.mul(numbered, cell)}));
  Value* after = inside(g.op("Ceil", {g.mul(g.add(numbered, number(1)), cell)}));
  Value* index = g.add(first, count_up(g, most_of(g, g.sub(after, first))));
  return {clamped(g, index, g.extent(x, axis)), nullptr, g.less(index, after)};
}

}  // namespace

void max_roi_pool_gradient(GradientContext& g) {
  g.set_zero(kRois);  // corners are rounded
  if (!g.wants(g.x(kX))) return;
  Value* x = widened(g, g.x(kX));
  const std::vector<std::int64_t> shape = g.node.attr_ints("pooled_shape");
  const std::int64_t cells = shape[0] * shape[1];
  Value* rois = g.cast(g.x(kRois), DType::float64);
  Value* image = g.cast(column(g, rois, 0), DType::int64);
  Value* corners = rounded(g, g.mul(rois, g.number(g.node.attr_float("spatial_scale", 1), rois)));
  const AxisCells down = pooled(g, x, column(g, corners, 2), column(g, corners, 4), shape[0], 2);
  const AxisCells across = pooled(g, x, column(g, corners, 1), column(g, corners, 3), shape[1], 3);
  Value* width = g.extent(x, 3);
  Value* index = g.add(g.mul(g.unsqueeze(down.index, {2, 4}), width), g.unsqueeze(across.index, {1, 3}));
  Value* is_place = g.op("And", {g.unsqueeze(down.is_place, {2, 4}), g.unsqueeze(across.is_place, {1, 3})});
  index = g.add(flattened(g, index, cells), g.mul(g.unsqueeze(image, {1, 2}), g.mul(g.extent(x, 2), width)));
  Value* values = g.gather(rows_of(g, x), index, 0);
  Value* is_best = is_first_largest(g, values, g.unsqueeze(flattened(g, is_place, cells), {3}));
  Value* dy = by_cell(g, cells);
  g.set(kX, gathered_up(g, index, g.where(is_best, dy, g.zero(dy)), x));
}

}  // namespace backpass
