// Where the rows of a tensor are. A row is what a network computes for one token: [batch, length, features] has batch *
// length of them, and so have [batch * length, features], [length, batch, features] and [batch, heads, length, size].
//
// A row is named by its place, a number: in a tensor [batch, length, ...] it is b * length + s. Each axis of a tensor
// is a product of factors; those of rows say how far apart neighbours' places are, all others are features. Rows of a
// tensor that were chosen by their places are *packed*: [chosen rows, axes that are left without the factors of rows].
#pragma once

#include <optional>
#include <vector>

#include "graph/dim.hpp"

namespace backpass {

struct RowFactor {
  Dim extent;
  std::optional<Dim> stride;  ///< between neighbours' places; none: features

  bool is_row() const { return stride.has_value(); }
  friend bool operator==(const RowFactor& a, const RowFactor& b) {
    return a.extent == b.extent && a.stride.has_value() == b.stride.has_value() &&
           (!a.stride || *a.stride == *b.stride);
  }
};

/// From the outermost factor to the innermost; none where the extent is 1.
using LayoutAxis = std::vector<RowFactor>;

struct RowLayout {
  std::vector<LayoutAxis> axes;

  /// Rows are the first axes, `count` of them, one place after the other; all others are features.
  static RowLayout leading(const Shape& shape, std::size_t count);

  std::size_t rank() const { return axes.size(); }
  Dim extent(std::size_t axis) const;
  bool has_rows(std::size_t axis) const;
  bool has_rows() const;
  /// Whether packed rows have this axis: it is more than rows, or nothing at all.
  bool is_kept(std::size_t axis) const;
  /// Where packed rows have it.
  std::size_t packed_axis(std::size_t axis) const;
  /// Extents of packed rows, behind the first.
  Shape kept_extents() const;
  /// Factors of rows, in the order of axes.
  std::vector<RowFactor> row_factors() const;
  /// Rows in a tensor.
  Dim row_count() const;
  /// Whether rows are the first axes and lie one place after the other.
  bool is_leading() const;

  friend bool operator==(const RowLayout& a, const RowLayout& b) { return a.axes == b.axes; }
};

LayoutAxis feature_axis(const Dim& extent);

/// The layout of a tensor with these extents whose elements, in the same order, have `layout`: what Reshape undoes.
/// None where an axis would hold a part of a factor of rows that does not divide, or rows between parts of one feature.
std::optional<RowLayout> regrouped(const RowLayout& layout, const Shape& shape);

}  // namespace backpass
