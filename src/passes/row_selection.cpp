#include "passes/row_selection.hpp"

#include <algorithm>

#include "passes/pattern.hpp"

namespace backpass {
namespace {

using pattern::axis_from_front;
using pattern::constant_ints;
using pattern::rank_of;

bool finds_rows(const Value* v) {
  const Node* node = v->producer;
  return node != nullptr && node->domain == "backpass" && (node->op == "LabelledRows" || node->op == "NeededRows");
}

std::size_t rows_of_gather(const Node& node) {
  if (rank_of(node.input(1)) > 1 || !node.input(1)->type.shape) return 0;
  return axis_from_front(node.attr_int("axis", 0), rank_of(node.input(0))) + 1;
}

std::size_t rows_of_slice(const Node& node) {
  const auto axes = constant_ints(node, 3, "axes");
  if (!axes || axes->empty()) return 0;
  std::size_t last = 0;
  for (std::int64_t axis : *axes) last = std::max(last, axis_from_front(axis, rank_of(node.input(0))));
  return last + 1;
}

std::size_t rows_of_gather_nd(const Node& node) {
  if (rank_of(node.input(1)) == 0) return 0;
  const Dim& depth = node.input(1)->type.shape->back();
  return depth.is_known() ? static_cast<std::size_t>(depth.value() + node.attr_int("batch_dims", 0)) : 0;
}

std::size_t row_axes_of(const Node& node) {
  if (node.op == "FlattenAndUnpad" && node.domain == "com.microsoft") return node.output(1) == nullptr ? 2 : 0;
  if (node.op == "ShrunkenGather" && node.domain == "com.microsoft") return rows_of_gather(node);
  if (!node.domain.empty()) return 0;
  if (node.op == "Gather") return rows_of_gather(node);
  if (node.op == "Slice") return rows_of_slice(node);
  return node.op == "GatherND" ? rows_of_gather_nd(node) : 0;
}

}  // namespace

std::optional<RowSelection> row_selection(Node& node) {
  const std::size_t rank = rank_of(node.input(0));
  if (rank < 2 || rank_of(node.output(0)) == 0 || node.def == nullptr) return std::nullopt;
  const std::size_t axes = row_axes_of(node);
  if (axes == 0 || axes >= rank) return std::nullopt;
  // Who chooses among features chooses no rows.
  const Shape& shape = *node.input(0)->type.shape;
  const bool has_rows = std::any_of(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(axes),
                                    [](const Dim& d) { return !d.is(1); });
  return has_rows ? std::optional(RowSelection{&node, axes}) : std::nullopt;
}

bool chooses_fewer(const RowSelection& selection) {
  const Node& node = *selection.node;
  if (node.op == "Slice") return true;
  if (node.inputs.size() > 1 && finds_rows(node.input(1))) return true;
  const bool is_one = node.op == "Gather" && rank_of(node.input(1)) == 0;
  const Shape &in = *node.input(0)->type.shape, &out = *node.output(0)->type.shape;
  return is_one || surely_at_most(product(out), product(in));
}

Value* chosen_places(Builder& b, const RowSelection& selection, ExtentValues& extents) {
  const Node& node = *selection.node;
  if (selection.row_axes == 1 && node.op == "Gather" && finds_rows(node.input(1))) return node.input(1);
  const Shape& in = *node.input(0)->type.shape;
  const Shape leading(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(selection.row_axes));
  Value* shape = extents.get(b, leading);
  Value* count = b.op("ReduceProd", {shape, b.ints({0})}, {{"keepdims", std::int64_t{0}}});
  Value* all = b.op("Range", {b.integer(0), count, b.integer(1)});
  std::vector<Value*> inputs = node.inputs;
  inputs[0] = leading.size() == 1 ? all : b.op("Reshape", {all, shape}, {{"allowzero", std::int64_t{1}}});
  return b.op(node.op, inputs, {node.attributes.begin(), node.attributes.end()}, node.domain);
}

}  // namespace backpass
