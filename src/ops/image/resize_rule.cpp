// Resampling is linear and works axis by axis, so that resizing the rows of an identity matrix along one axis gives its
// matrix, and the gradient is a product with that matrix transposed. Where roi or scales want a gradient, the matrix is
// written as a function of them.
#include "ops/image/resize_rule.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "gradient/activity.hpp"
#include "gradient/composite.hpp"
#include "gradient/positions.hpp"
#include "gradient/sampling.hpp"
#include "gradient/scan_writer.hpp"
#include "gradient/standardize_rule.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kX, kRoi, kScales, kSizes };

bool is_given(const GradientContext& g, std::size_t input) {
  if (!g.has_input(input)) return false;
  const Type& type = g.x(input)->type;
  return !(type.shape && type.shape->size() == 1 && (*type.shape)[0].is(0));
}

std::vector<std::int64_t> axes_of(const GradientContext& g) {
  const std::int64_t rank = g.rank(g.x());
  std::vector<std::int64_t> axes = g.node.attr_ints("axes");
  if (!g.node.has_attribute("axes")) {
    for (std::int64_t i = 0; i < rank; ++i) axes.push_back(i);
  }
  for (std::int64_t& axis : axes) axis = axis < 0 ? axis + rank : axis;
  return axes;
}

bool crops(const Node& node) { return node.attr_string("coordinate_transformation_mode", "") == "tf_crop_and_resize"; }

bool keeps_aspect_ratio(const GradientContext& g) {
  return is_given(g, kSizes) && g.node.attr_string("keep_aspect_ratio_policy", "stretch") != "stretch";
}

/// Nothing happens along the axis that scales or sizes name at position i.
bool stays(GradientContext& g, std::size_t i, std::size_t axis) {
  if (crops(g.node) || keeps_aspect_ratio(g)) return false;
  if (!((*g.x()->type.shape)[axis] == (*g.y()->type.shape)[axis])) return false;
  if (is_given(g, kSizes)) return true;
  return g.x(kScales)->constant && g.x(kScales)->constant->to_doubles().at(i) == 1;
}

/// Extent and size of the axis whose scale all axes take, 1-D.
std::pair<Value*, Value*> leading_axis(GradientContext& g, const std::vector<std::int64_t>& axes) {
  Value* extents = g.gather(g.shape_of(g.x()), g.b.ints(axes), 0);
  Value* sizes = g.cast(g.x(kSizes), DType::int64);
  Value* scales = g.div(g.cast(sizes, DType::float64), g.cast(extents, DType::float64));
  const bool is_least = g.node.attr_string("keep_aspect_ratio_policy", "") == "not_larger";
  Value* at = g.op(is_least ? "ArgMin" : "ArgMax", {scales}, {{"axis", std::int64_t{0}}});
  return {g.gather(extents, at, 0), g.gather(sizes, at, 0)};
}

/// The rows of the matrix where one scale fits all axes: each unit vector is repeated along an axis of the leading
/// one's extent, so that it is resized by the same scale. `roi` and `attributes` as for the vector alone.
Value* matrix_by_leading_axis(GradientContext& g, Value* unit, std::int64_t at, Value* roi, AttributeList attributes,
                              const std::vector<std::int64_t>& axes) {
  auto [extent, size] = leading_axis(g, axes);
  Value* sizes = g.concat({g.slice(g.cast(g.x(kSizes), DType::int64), at, at + 1, 0), size}, 0);
  Value* shape = g.concat({g.reshape(g.extent(g.x(), axes[static_cast<std::size_t>(at)]), {1}), extent}, 0);
  if (roi != nullptr) {
    Value* whole = g.b.scalar(0, roi);
    Value* end = g.b.scalar(1, roi);
    roi = g.concat({g.slice(roi, 0, 1, 0), g.reshape(whole, {1}), g.slice(roi, 1, 2, 0), g.reshape(end, {1})}, 0);
  }
  std::erase_if(attributes, [](const auto& a) { return a.first == "axes"; });
  const std::string name = concat(g.y()->name, "_Grad/Resize_", at);
  ScanBody body(name);
  Value* vector = body.b.op("Unsqueeze", {body.step_of("unit", unit), body.b.ints({1})});
  Value* repeated = body.b.op("Expand", {vector, body.capture("shape", shape)});
  Value* resized =
      body.b.op("Resize", {repeated, body.capture("roi", roi), nullptr, body.capture("sizes", sizes)}, attributes);
  body.graph->outputs.push_back(body.b.op("Gather", {resized, body.b.integer(0)}, {{"axis", std::int64_t{1}}}));
  return add_scan(g.b, name, std::move(body), {}, {unit}, false).front();
}

/// [in, out]: row k is what the k-th unit vector becomes along this axis.
Value* axis_matrix(GradientContext& g, std::size_t i, const std::vector<std::int64_t>& axes) {
  auto at = static_cast<std::int64_t>(i);
  const std::int64_t axis = axes[i];
  Value* extent = g.reshape(g.extent(g.x(), axis), {1});
  const auto dtype = static_cast<std::int64_t>(g.dy()->type.dtype);
  Value* square = g.op("ConstantOfShape", {g.concat({extent, extent}, 0)});
  Value* unit = g.op("EyeLike", {square}, {{"dtype", dtype}});
  AttributeList attributes(g.node.attributes.begin(), g.node.attributes.end());
  std::erase_if(attributes, [](const auto& a) { return a.first == "axes" || a.first == "extrapolation_value"; });
  attributes.emplace_back("axes", std::vector<std::int64_t>{1});  // what lies outside is constant: its slope is zero
  Value* roi = nullptr;
  if (crops(g.node)) {
    auto end = at + std::ssize(axes);
    roi = g.concat({g.slice(g.x(kRoi), at, at + 1, 0), g.slice(g.x(kRoi), end, end + 1, 0)}, 0);
  }
  if (keeps_aspect_ratio(g)) return matrix_by_leading_axis(g, unit, at, roi, std::move(attributes), axes);
  if (!is_given(g, kSizes)) return g.op("Resize", {unit, roi, g.slice(g.x(kScales), at, at + 1, 0)}, attributes);
  Value* size = g.reshape(g.extent(g.y(), axis), {1});
  return g.op("Resize", {unit, roi, nullptr, size}, attributes);
}

/// a [..., out, ...] along `axis`, times the matrix transposed.
Value* contract(GradientContext& g, Value* a, Value* matrix, std::int64_t axis) {
  const std::int64_t rank = g.rank(g.x());
  if (axis == rank - 2) return g.matmul(matrix, a);
  Value* transposed = g.transpose(matrix, {1, 0});
  if (axis == rank - 1) return g.matmul(a, transposed);
  std::vector<std::int64_t> perm;
  for (std::int64_t i = 0; i < rank; ++i) perm.push_back(i);
  std::swap(perm[static_cast<std::size_t>(axis)], perm.back());
  return g.transpose(g.matmul(g.transpose(a, perm), transposed), perm);
}

// ---- The whole operator in terms of the places it reads, for the gradients of roi and scales.

/// One axis: the same steps as in ops/image/resample_taps.cpp, on vectors with one element per output position.
class AxisWriter {
 public:
  AxisWriter(GradientContext& g, std::size_t position, const std::vector<std::int64_t>& axes, const Value* like)
      : g_(g), like_(like), position_(static_cast<std::int64_t>(position)), axes_(axes), axis_(axes[position]) {
    in_ = length_of(g, g.x(), axis_, like);
    out_ = length_of(g, g.y(), axis_, like);
    last_ = g.sub(in_, number(1));
    scale_ = scale();
    length_ = is_given(g, kScales) || keeps_aspect_ratio(g) ? g.mul(scale_, in_) : out_;
  }

  /// [out, in]: row i holds the weights that output position i is made with.
  Value* matrix() {
    const bool is_cubic = g_.node.attr_string("mode", "nearest") == "cubic";
    const bool is_wide = g_.node.attr_int("antialias", 0) != 0;
    Value* stretch = is_wide ? g_.op("Min", {scale_, number(1)}) : number(1);
    Value* reach = g_.op("Ceil", {g_.div(number(is_cubic ? 2 : 1), stretch)});
    Value* source = this->source();
    Value* is_inside =
        g_.op("And", {g_.op("GreaterOrEqual", {source, number(0)}), g_.op("LessOrEqual", {source, last_})});
    source = g_.op("Max", {g_.op("Min", {source, g_.add(last_, reach)}), g_.neg(reach)});
    Value* place = places(g_.mul(reach, number(2)));
    Value* distance = g_.mul(g_.op("Abs", {g_.sub(place, g_.unsqueeze(source, {1}))}), stretch);
    Value* weight = is_cubic ? cubic(distance) : g_.op("Max", {g_.sub(number(1), distance), number(0)});
    if (g_.node.attr_int("exclude_outside", 0) != 0) {
      Value* exists = g_.op("And", {g_.op("GreaterOrEqual", {place, number(0)}), g_.op("LessOrEqual", {place, last_})});
      weight = normalized(g_.where(exists, weight, number(0)));
    } else if (is_wide) {
      weight = normalized(weight);
    }
    if (crops(g_.node)) weight = g_.where(g_.unsqueeze(is_inside, {1}), weight, number(0));
    return g_.matmul(weight, to_elements(place));
  }

 private:
  Value* number(double value) { return g_.number(value, like_); }

  Value* scale() {
    if (is_given(g_, kScales)) return g_.cast_like(g_.gather(g_.x(kScales), g_.b.integer(position_), 0), like_);
    if (!keeps_aspect_ratio(g_)) return g_.div(out_, in_);
    auto [extent, size] = leading_axis(g_, axes_);
    return g_.squeeze(g_.div(g_.cast_like(size, like_), g_.cast_like(extent, like_)), {0});
  }

  /// Where each output position lies between the input's elements: [out].
  Value* source() {
    Value* x = g_.cast_like(count_up(g_, g_.extent(g_.y(), axis_)), like_);
    Value* centre = g_.div(g_.add(x, number(0.5)), scale_);
    Value* half_pixel = g_.sub(centre, number(0.5));
    Value* is_one = g_.equal(length_, number(1));
    Value* step = g_.div(x, g_.where(is_one, number(1), g_.sub(length_, number(1))));
    const std::string mode = g_.node.attr_string("coordinate_transformation_mode", "half_pixel");
    if (mode == "half_pixel_symmetric") {
      Value* adjustment = g_.div(out_, length_);
      return g_.add(g_.mul(g_.div(in_, number(2)), g_.sub(number(1), adjustment)), half_pixel);
    }
    if (mode == "pytorch_half_pixel") return g_.where(g_.greater(length_, number(1)), half_pixel, number(0));
    if (mode == "align_corners") return g_.where(is_one, number(0), g_.mul(step, last_));
    if (mode == "asymmetric") return g_.div(x, scale_);
    if (mode == "tf_half_pixel_for_nn") return centre;
    if (mode != "tf_crop_and_resize") return half_pixel;
    Value* begin = roi(position_);
    Value* end = roi(position_ + std::ssize(axes_));
    Value* middle = g_.mul(g_.add(begin, end), number(0.5));
    return g_.mul(g_.where(is_one, middle, g_.add(begin, g_.mul(step, g_.sub(end, begin)))), last_);
  }

  Value* roi(std::int64_t i) { return g_.cast_like(g_.gather(g_.x(kRoi), g_.b.integer(i), 0), like_); }

  /// The input's positions and as many before and behind them: [places].
  Value* places(Value* margin) {
    Value* count = g_.add(in_, g_.mul(margin, number(2)));
    return g_.sub(g_.cast_like(count_up(g_, g_.cast(count, DType::int64)), like_), margin);
  }

  /// [places, in]: places outside belong to the nearest element.
  Value* to_elements(Value* place) {
    Value* nearest = clamped(g_, g_.cast(place, DType::int64), g_.extent(g_.x(), axis_));
    Value* is_it = g_.equal(g_.unsqueeze(nearest, {1}), count_up(g_, g_.extent(g_.x(), axis_)));
    return g_.cast_like(is_it, like_);
  }

  Value* normalized(Value* weight) {
    Value* sum = g_.sum(weight, {1}, true);
    return g_.div(weight, g_.where(g_.equal(sum, number(0)), number(1), sum));
  }

  Value* cubic(Value* v) {
    const double a = g_.node.attr_float("cubic_coeff_a", -0.75F);
    Value* near = g_.sub(g_.mul(v, number(a + 2)), number(a + 3));
    near = g_.add(g_.mul(g_.mul(near, v), v), number(1));
    Value* far = g_.sub(g_.mul(v, number(a)), number(5 * a));
    far = g_.sub(g_.mul(g_.add(g_.mul(far, v), number(8 * a)), v), number(4 * a));
    far = g_.where(g_.less(v, number(2)), far, number(0));
    return g_.where(g_.op("LessOrEqual", {v, number(1)}), near, far);
  }

  GradientContext& g_;
  const Value* like_;
  std::int64_t position_;
  const std::vector<std::int64_t>& axes_;
  std::int64_t axis_;
  Value* in_;
  Value* out_;
  Value* last_;
  Value* scale_;
  Value* length_;
};

/// The extrapolation value is left out: nothing depends on it.
std::vector<Value*> write_by_places(Builder& b, const Node& node) {
  const ValueSet none;
  GradientContext g(b, node, {}, none);
  Value* y = widened(g, g.x());
  const std::vector<std::int64_t> axes = axes_of(g);
  for (std::size_t i = 0; i < axes.size(); ++i) {
    y = contract(g, y, AxisWriter(g, i, axes, y).matrix(), axes[i]);
  }
  return {g.cast_like(y, node.inputs[kX])};
}

bool needs_places(const GradientContext& g) {
  if (g.node.attr_string("mode", "nearest") == "nearest") return false;
  return (g.wants(kRoi) && crops(g.node)) || (g.wants(kScales) && is_given(g, kScales));
}

}  // namespace

void resize_gradient(GradientContext& g) {
  g.rank(g.y());
  if (needs_places(g)) return composite_gradient(g, write_by_places);
  for (std::size_t i : {kRoi, kScales}) {
    if (g.has_input(i)) g.set_zero(i);
  }
  if (!g.wants(g.x())) return;
  const std::vector<std::int64_t> axes = axes_of(g);
  Value* dx = g.dy();
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (stays(g, i, static_cast<std::size_t>(axes[i]))) continue;
    dx = contract(g, dx, axis_matrix(g, i, axes), axes[i]);
  }
  g.set(0, g.reshape_like(dx, g.x()));
}

}  // namespace backpass
