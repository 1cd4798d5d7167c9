#include "passes/row_values.hpp"

#include <algorithm>

namespace backpass {
namespace {

Shape without_first(const Shape& shape) { return {shape.begin() + 1, shape.end()}; }

/// Each axis has one factor.
Value* apart(Builder& b, Value* v, RowLayout& layout, ExtentValues& extents) {
  Shape shape;
  RowLayout result;
  for (const LayoutAxis& axis : layout.axes) {
    if (axis.empty()) {
      shape.emplace_back(1);
      result.axes.emplace_back();
    }
    for (const RowFactor& factor : axis) {
      shape.push_back(factor.extent);
      result.axes.push_back({factor});
    }
  }
  if (result.rank() == layout.rank()) return v;
  layout = std::move(result);
  return b.op("Reshape", {v, extents.get(b, shape)}, {{"allowzero", std::int64_t{1}}});
}

std::vector<std::int64_t> order_of(const RowLayout& layout) {
  std::vector<std::int64_t> order;
  const std::vector<RowFactor> rows = by_stride(layout.row_factors());
  for (const RowFactor& row : rows) {
    for (std::size_t i = 0; i < layout.rank(); ++i) {
      if (layout.has_rows(i) && layout.axes[i].front() == row) order.push_back(static_cast<std::int64_t>(i));
    }
  }
  for (std::size_t i = 0; i < layout.rank(); ++i) {
    if (!layout.has_rows(i)) order.push_back(static_cast<std::int64_t>(i));
  }
  return order;
}

/// Axes of extent 1 may go anywhere.
bool moves_elements(const RowLayout& layout, std::vector<std::int64_t> order) {
  std::erase_if(order, [&](std::int64_t axis) { return layout.axes[static_cast<std::size_t>(axis)].empty(); });
  return !std::is_sorted(order.begin(), order.end());
}

Value* times(Builder& b, Value* v, const Dim& by, ExtentValues& extents) {
  return by.is(1) ? v : b.op("Mul", {v, extents.get(b, by)});
}

/// The layout of what a value is a transposition of, if that leaves features in their order.
std::optional<RowLayout> before_transposition(const Value* v, const RowLayout& layout) {
  if (v->producer == nullptr || v->producer->op != "Transpose" || !v->producer->domain.empty()) return std::nullopt;
  const std::vector<std::int64_t> perm = v->producer->attr_ints("perm");
  std::vector<std::int64_t> features;
  RowLayout before = layout;
  for (std::size_t i = 0; i < perm.size(); ++i) {
    before.axes[static_cast<std::size_t>(perm[i])] = layout.axes[i];
    if (layout.is_kept(i)) features.push_back(perm[i]);
  }
  return !perm.empty() && std::is_sorted(features.begin(), features.end()) ? std::optional(before) : std::nullopt;
}

}  // namespace

std::vector<RowFactor> by_stride(std::vector<RowFactor> factors) {
  std::stable_sort(factors.begin(), factors.end(), [](const RowFactor& a, const RowFactor& c) {
    if (c.stride->is(1) || a.stride->is(1)) return c.stride->is(1) && !a.stride->is(1);
    return !(*a.stride == *c.stride) && surely_at_most(*c.stride, *a.stride);
  });
  return factors;
}

bool can_take_rows(const RowLayout& layout, const ExtentValues& extents) {
  const std::vector<RowFactor> rows = layout.row_factors();
  if (rows.size() > 2) return false;
  for (const RowFactor& row : rows) {
    if (!extents.has(row.extent) || !extents.has(*row.stride)) return false;
  }
  const Shape kept = layout.kept_extents();
  return std::all_of(kept.begin(), kept.end(), [](const Dim& d) { return d.is_known() && d.value() > 0; });
}

bool rows_lead(const RowLayout& layout) {
  std::size_t rows = 0;
  while (rows < layout.rank() && (!layout.is_kept(rows) || layout.axes[rows].empty())) ++rows;
  for (std::size_t i = rows; i < layout.rank(); ++i) {
    if (layout.has_rows(i)) return false;
  }
  return true;
}

Value* with_kept(Builder& b, Value* packed, const Shape& kept) {
  if (without_first(*packed->type.shape) == kept) return packed;
  std::vector<std::int64_t> shape{0};
  for (const Dim& extent : kept) shape.push_back(extent.value());
  return b.op("Reshape", {packed, b.ints(shape)});
}

Value* rows_first(Builder& b, Value* v, const RowLayout& given, ExtentValues& extents) {
  // What only arranges elements is looked through: rows may have been first before.
  RowLayout layout = given;
  while (const std::optional<RowLayout> before = before_transposition(v, layout)) {
    layout = *before;
    v = v->producer->input(0);
  }
  v = apart(b, v, layout, extents);
  const std::vector<std::int64_t> order = order_of(layout);
  if (moves_elements(layout, order)) v = b.op("Transpose", {v}, {{"perm", order}});
  std::vector<std::int64_t> shape{-1};
  for (const Dim& extent : given.kept_extents()) shape.push_back(extent.value());
  const bool is_there =
      layout.row_factors().size() == 1 && layout.has_rows(0) && without_first(*v->type.shape) == given.kept_extents();
  return is_there ? v : b.op("Reshape", {v, b.ints(shape)});
}

Value* local_places(Builder& b, const std::vector<RowFactor>& factors, Value* places, ExtentValues& extents) {
  Value* sum = nullptr;
  Dim local = 1;
  for (auto factor = factors.rbegin(); factor != factors.rend(); ++factor) {
    Value* index = places;
    if (!factor->stride->is(1)) index = b.op("Div", {index, extents.get(b, *factor->stride)});
    index = b.op("Mod", {index, extents.get(b, factor->extent)});
    index = times(b, index, local, extents);
    local = local * factor->extent;
    sum = sum == nullptr ? index : b.op("Add", {sum, index});
  }
  return sum;
}

Value* take_rows(Builder& b, Value* v, const RowLayout& layout, bool is_part, Value* places, ExtentValues& extents) {
  const std::vector<RowFactor> rows = by_stride(layout.row_factors());
  if (!is_part && layout.is_leading() && rows.size() == 2 && !layout.is_kept(0) && !layout.is_kept(1)) {
    return b.ops("FlattenAndUnpad", {v, places}, 1, {}, "com.microsoft")[0];
  }
  Value* index = is_part ? local_places(b, rows, places, extents) : places;
  return b.op("Gather", {rows_first(b, v, layout, extents), index}, {{"axis", std::int64_t{0}}});
}

Value* aligned(Builder& b, Value* v, const RowLayout& layout, const RowLayout& out, bool has_rows) {
  Shape wanted;
  const std::size_t missing = out.rank() - layout.rank();
  bool is_before = !has_rows;  // axes that a value without rows need not have
  for (std::size_t i = 0; i < out.rank(); ++i) {
    if (!out.is_kept(i)) continue;
    if (i < missing && is_before) continue;
    is_before = false;
    Dim extent = 1;
    if (i >= missing) {
      for (const RowFactor& f : layout.axes[i - missing]) extent = f.is_row() ? extent : extent * f.extent;
    }
    wanted.push_back(extent);
  }
  if (has_rows) return with_kept(b, v, wanted);
  if (*v->type.shape == wanted) return v;
  const Dims dims = to_dims(wanted);
  return b.op("Reshape", {v, b.ints({dims.begin(), dims.end()})});
}

}  // namespace backpass
