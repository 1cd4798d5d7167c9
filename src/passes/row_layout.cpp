#include "passes/row_layout.hpp"

#include <algorithm>

namespace backpass {
namespace {

/// The number by which b multiplies a, if it is known to.
std::optional<Dim> quotient(const Dim& product, const Dim& by) {
  if (by.is_known() && by.value() == 0) return std::nullopt;
  const Dim found = floor_div(product, by);
  return found * by == product ? std::optional(found) : std::nullopt;
}

/// Takes factors from the end of a list, innermost first, until they make up an extent.
class FactorSource {
 public:
  explicit FactorSource(const RowLayout& layout) {
    for (const LayoutAxis& axis : layout.axes) factors_.insert(factors_.end(), axis.begin(), axis.end());
  }

  std::optional<LayoutAxis> take(Dim extent) {
    LayoutAxis axis;
    while (!extent.is(1)) {
      if (factors_.empty()) return std::nullopt;
      RowFactor& last = factors_.back();
      if (const std::optional<Dim> rest = quotient(extent, last.extent)) {
        axis.push_back(last);
        factors_.pop_back();
        extent = *rest;
        continue;
      }
      const std::optional<Dim> outer = quotient(last.extent, extent);
      if (!outer) return std::nullopt;
      axis.push_back({extent, last.stride});
      if (last.stride) last.stride = *last.stride * extent;
      last.extent = *outer;
      extent = 1;
    }
    std::reverse(axis.begin(), axis.end());
    return axis;
  }

  bool is_used_up() const { return factors_.empty(); }

 private:
  std::vector<RowFactor> factors_;
};

/// Neighbours that are one factor: features, and rows whose places follow each other.
LayoutAxis joined(const LayoutAxis& axis) {
  LayoutAxis result;
  for (const RowFactor& factor : axis) {
    if (!result.empty() && result.back().is_row() == factor.is_row() &&
        (!factor.stride || *result.back().stride == *factor.stride * factor.extent)) {
      result.back().extent = result.back().extent * factor.extent;
      result.back().stride = factor.stride;
    } else {
      result.push_back(factor);
    }
  }
  return result;
}

}  // namespace

LayoutAxis feature_axis(const Dim& extent) { return extent.is(1) ? LayoutAxis() : LayoutAxis{{extent, std::nullopt}}; }

RowLayout RowLayout::leading(const Shape& shape, std::size_t count) {
  RowLayout layout;
  layout.axes.resize(shape.size());
  Dim stride = 1;
  for (std::size_t i = count; i-- > 0;) {
    if (!shape[i].is(1)) layout.axes[i] = {{shape[i], stride}};
    stride = stride * shape[i];
  }
  for (std::size_t i = count; i < shape.size(); ++i) layout.axes[i] = feature_axis(shape[i]);
  return layout;
}

Dim RowLayout::extent(std::size_t axis) const {
  Dim extent = 1;
  for (const RowFactor& factor : axes[axis]) extent = extent * factor.extent;
  return extent;
}

bool RowLayout::has_rows(std::size_t axis) const {
  return std::any_of(axes[axis].begin(), axes[axis].end(), [](const RowFactor& f) { return f.is_row(); });
}

bool RowLayout::has_rows() const {
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (has_rows(i)) return true;
  }
  return false;
}

bool RowLayout::is_kept(std::size_t axis) const {
  return axes[axis].empty() ||
         std::any_of(axes[axis].begin(), axes[axis].end(), [](const RowFactor& f) { return !f.is_row(); });
}

std::size_t RowLayout::packed_axis(std::size_t axis) const {
  std::size_t packed = 1;
  for (std::size_t i = 0; i < axis; ++i) packed += is_kept(i) ? 1 : 0;
  return packed;
}

Shape RowLayout::kept_extents() const {
  Shape extents;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (!is_kept(i)) continue;
    Dim extent = 1;
    for (const RowFactor& factor : axes[i]) extent = factor.is_row() ? extent : extent * factor.extent;
    extents.push_back(extent);
  }
  return extents;
}

std::vector<RowFactor> RowLayout::row_factors() const {
  std::vector<RowFactor> found;
  for (const LayoutAxis& axis : axes) {
    std::copy_if(axis.begin(), axis.end(), std::back_inserter(found), [](const RowFactor& f) { return f.is_row(); });
  }
  return found;
}

Dim RowLayout::row_count() const {
  Dim count = 1;
  for (const RowFactor& factor : row_factors()) count = count * factor.extent;
  return count;
}

bool RowLayout::is_leading() const {
  std::size_t first_kept = 0;
  while (first_kept < axes.size() && !is_kept(first_kept)) ++first_kept;
  for (std::size_t i = first_kept; i < axes.size(); ++i) {
    if (has_rows(i)) return false;
  }
  const LayoutAxis rows = joined(row_factors());
  return rows.size() == 1 && rows.front().stride->is(1);
}

std::optional<RowLayout> regrouped(const RowLayout& layout, const Shape& shape) {
  FactorSource source(layout);
  RowLayout result;
  result.axes.resize(shape.size());
  for (std::size_t i = shape.size(); i-- > 0;) {
    const std::optional<LayoutAxis> axis = source.take(shape[i]);
    if (!axis) return std::nullopt;
    // Rows between features of one axis would have to be taken apart wherever the axis is used.
    result.axes[i] = joined(*axis);
    if (result.axes[i].size() > 2) return std::nullopt;
  }
  return source.is_used_up() ? std::optional(result) : std::nullopt;
}

}  // namespace backpass
