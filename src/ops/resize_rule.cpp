// Resampling is linear and works axis by axis, so that resizing the rows of an identity matrix along one axis gives its
// matrix, and the gradient is a product with that matrix transposed.
#include "ops/resize_rule.hpp"

#include <algorithm>
#include <string>

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

/// Nothing happens along the axis that scales or sizes name at position i.
bool stays(GradientContext& g, std::size_t i, std::size_t axis) {
  if (crops(g.node)) return false;
  if (!((*g.x()->type.shape)[axis] == (*g.y()->type.shape)[axis])) return false;
  if (is_given(g, kSizes)) return true;
  return g.x(kScales)->constant && g.x(kScales)->constant->to_doubles().at(i) == 1;
}

/// [in, out]: row k is what the k-th unit vector becomes along this axis.
Value* axis_matrix(GradientContext& g, std::size_t i, std::int64_t axis, std::size_t count) {
  auto at = static_cast<std::int64_t>(i);
  Value* extent = g.reshape(g.extent(g.x(), axis), {1});
  const auto dtype = static_cast<std::int64_t>(g.dy()->type.dtype);
  Value* square = g.op("ConstantOfShape", {g.concat({extent, extent}, 0)});
  Value* unit = g.op("EyeLike", {square}, {{"dtype", dtype}});
  AttributeList attributes(g.node.attributes.begin(), g.node.attributes.end());
  std::erase_if(attributes, [](const auto& a) { return a.first == "axes" || a.first == "extrapolation_value"; });
  attributes.emplace_back("axes", std::vector<std::int64_t>{1});  // what lies outside is constant: its slope is zero
  Value* roi = nullptr;
  if (crops(g.node)) {
    auto end = at + static_cast<std::int64_t>(count);
    roi = g.concat({g.slice(g.x(kRoi), at, at + 1, 0), g.slice(g.x(kRoi), end, end + 1, 0)}, 0);
  }
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

void refuse_unknown_scale(const GradientContext& g) {
  if (g.node.attr_string("keep_aspect_ratio_policy", "stretch") == "stretch" || !is_given(g, kSizes)) return;
  fail<Unsupported>(
      g.node.label(), " gradient: got keep_aspect_ratio_policy ", g.node.attr_string("keep_aspect_ratio_policy", ""),
      ", whose scale does not follow from the extents of one axis, expected stretch; give scales instead");
}

}  // namespace

void resize_gradient(GradientContext& g) {
  for (std::size_t i : {kRoi, kScales}) {
    if (g.has_input(i)) g.set_zero(i);
  }
  if (!g.wants(g.x())) return;
  refuse_unknown_scale(g);
  g.rank(g.y());
  const std::vector<std::int64_t> axes = axes_of(g);
  Value* dx = g.dy();
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (stays(g, i, static_cast<std::size_t>(axes[i]))) continue;
    dx = contract(g, dx, axis_matrix(g, i, axes[i], axes.size()), axes[i]);
  }
  g.set(0, g.reshape_like(dx, g.x()));
}

}  // namespace backpass
