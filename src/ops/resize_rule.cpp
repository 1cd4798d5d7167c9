// Resampling is linear and works axis by axis, so that resizing the rows of an identity matrix along one axis gives its
// matrix, and the gradient is a product with that matrix transposed.
#include "ops/resize_rule.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "gradient/scan_writer.hpp"
#include "ops/op.hpp"

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

}  // namespace

void resize_gradient(GradientContext& g) {
  for (std::size_t i : {kRoi, kScales}) {
    if (g.has_input(i)) g.set_zero(i);
  }
  if (!g.wants(g.x())) return;
  g.rank(g.y());
  const std::vector<std::int64_t> axes = axes_of(g);
  Value* dx = g.dy();
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (stays(g, i, static_cast<std::size_t>(axes[i]))) continue;
    dx = contract(g, dx, axis_matrix(g, i, axes), axes[i]);
  }
  g.set(0, g.reshape_like(dx, g.x()));
}

}  // namespace backpass
