#include "passes/row_axes.hpp"

#include <algorithm>

#include "graph/op.hpp"
#include "passes/pattern.hpp"

namespace backpass {
namespace {

using pattern::axis_from_front;
using pattern::is_op;

std::optional<RowAxes> reduced(const Node& node, const RowAxes& rows) {
  const auto axes = named_axes(node.input(1), rows.size());
  if (!axes || axes->empty()) return std::nullopt;
  const bool keeps = node.attr_int("keepdims", 1) != 0;
  RowAxes left;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool goes = std::find(axes->begin(), axes->end(), i) != axes->end();
    if (goes && rows[i]) return std::nullopt;
    if (!goes || keeps) left.push_back(rows[i]);
  }
  return left;
}

std::optional<RowAxes> unsqueezed(const Node& node, const RowAxes& rows) {
  if (node.input(1) == nullptr || !node.input(1)->constant) return std::nullopt;
  const std::size_t rank = rows.size() + static_cast<std::size_t>(node.input(1)->constant->size());
  const auto axes = named_axes(node.input(1), rank);
  if (!axes) return std::nullopt;
  RowAxes more;
  auto next = rows.begin();
  for (std::size_t i = 0; i < rank; ++i) {
    const bool is_new = std::find(axes->begin(), axes->end(), i) != axes->end();
    more.push_back(!is_new && *next++);
  }
  return more;
}

std::optional<RowAxes> squeezed(const Node& node, const RowAxes& rows) {
  const auto axes = named_axes(node.input(1), rows.size());
  if (!axes || axes->empty()) return std::nullopt;
  RowAxes fewer;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool goes = std::find(axes->begin(), axes->end(), i) != axes->end();
    if (goes && rows[i]) return std::nullopt;
    if (!goes) fewer.push_back(rows[i]);
  }
  return fewer;
}

std::optional<RowAxes> transposed(const Node& node, const RowAxes& rows) {
  RowAxes moved;
  std::int64_t last = -1;
  for (std::int64_t from : node.attr_ints("perm")) {
    const bool is_row = rows.at(static_cast<std::size_t>(from));
    if (is_row && from < last) return std::nullopt;
    if (is_row) last = from;
    moved.push_back(is_row);
  }
  return moved.size() == rows.size() ? std::optional(moved) : std::nullopt;
}

}  // namespace

std::optional<std::vector<std::size_t>> named_axes(const Value* axes, std::size_t rank) {
  if (axes == nullptr) return std::vector<std::size_t>{};
  if (!axes->constant || axes->constant->dtype() != DType::int64) return std::nullopt;
  const auto* axis = axes->constant->as<std::int64_t>();
  std::vector<std::size_t> counted;
  for (std::int64_t i = 0; i < axes->constant->size(); ++i) counted.push_back(axis_from_front(axis[i], rank));
  return counted;
}

std::optional<RowAxes> rows_behind(const Node& node, const RowAxes& rows) {
  if (is_op(&node, "LogSoftmax") || is_op(&node, "Softmax")) {
    return rows.at(axis_from_front(node.attr_int("axis", -1), rows.size())) ? std::nullopt : std::optional(rows);
  }
  if (node.domain.empty() && node.op.starts_with("Reduce")) return reduced(node, rows);
  if (is_op(&node, "Unsqueeze")) return unsqueezed(node, rows);
  if (is_op(&node, "Squeeze")) return squeezed(node, rows);
  if (is_op(&node, "Transpose")) return transposed(node, rows);
  return is_op(&node, "Identity") ? std::optional(rows) : std::nullopt;
}

bool sums_rows(const Node& node, const RowAxes& rows) {
  if (!is_op(&node, "ReduceSum")) return false;
  const auto axes = named_axes(node.input(1), rows.size());
  if (!axes) return false;
  if (axes->empty()) return node.attr_int("noop_with_empty_axes", 0) == 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] && std::find(axes->begin(), axes->end(), i) == axes->end()) return false;
  }
  return true;
}

}  // namespace backpass
