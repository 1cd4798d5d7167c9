#include "passes/move_adjust.hpp"

#include <algorithm>

#include "ops/random/dropout.hpp"
#include "passes/move_gain.hpp"

namespace backpass {
namespace {

using Numbers = std::vector<std::int64_t>;

/// A list of extents with one of them replaced: by a number, or by one that is computed.
struct Entry {
  std::size_t at = 0;
  std::int64_t number = 0;
  Value* computed = nullptr;
};

Value* replaced(Builder& b, Value* list, const Entry& entry) {
  if (list->constant && entry.computed == nullptr) {
    Numbers numbers = list->constant->to_ints();
    numbers[entry.at] = entry.number;
    return b.ints(numbers);
  }
  const std::int64_t at = static_cast<std::int64_t>(entry.at);
  const std::int64_t size = list->type.shape->front().value();
  std::vector<Value*> parts;
  if (at > 0) parts.push_back(b.op("Slice", {list, b.ints({0}), b.ints({at}), b.ints({0})}));
  parts.push_back(entry.computed != nullptr ? entry.computed : b.ints({entry.number}));
  if (at + 1 < size) parts.push_back(b.op("Slice", {list, b.ints({at + 1}), b.ints({size}), b.ints({0})}));
  return parts.size() == 1 ? parts.front() : b.op("Concat", parts, {{"axis", std::int64_t{0}}});
}

bool has_known_size(const Value* list) {
  return list != nullptr && list->type.shape && list->type.shape->size() == 1 && list->type.shape->front().is_known();
}

/// How a Reshape names the extent of what is selected. Besides numbers: 0 for the extent at the same place of the
/// input.
std::optional<Entry> entry_of_reshape(const Node& node, std::size_t axis, std::size_t in, const Dim& count) {
  const Value* target = node.input(1);
  if (!has_known_size(target)) return std::nullopt;
  const bool copies = node.attr_int("allowzero", 0) == 0;
  // Another axis of the result might be as long as the one that is selected from because it is said to be.
  if (copies && in != axis && in < static_cast<std::size_t>(target->type.shape->front().value())) {
    const auto numbers = numbers_in(target);
    if (!numbers || (*numbers)[in] == 0) return std::nullopt;
  }
  if (count.is_known() && (!copies || count.value() > 0)) return Entry{axis, count.value()};
  if (copies && in == axis) return Entry{axis, 0};
  return std::nullopt;
}

/// All extents of the result but one, if they are numbers, none of them 0.
std::optional<Numbers> all_but(const Node& node, std::size_t axis) {
  Numbers numbers;
  for (const Dim& d : *node.output(0)->type.shape) {
    const bool is_free = numbers.size() == axis;
    if (!is_free && (!d.is_known() || d.value() == 0)) return std::nullopt;
    numbers.push_back(is_free ? -1 : d.value());
  }
  return numbers;
}

/// Of an Expand's target; none where that says nothing of the axis.
std::optional<std::size_t> place_in_target(const Node& node, std::size_t axis) {
  const std::size_t rank = node.output(0)->type.shape->size();
  const auto size = static_cast<std::size_t>(node.input(1)->type.shape->front().value());
  return axis + size < rank ? std::nullopt : std::optional(axis + size - rank);
}

bool can_adjust_expand(const Node& node, std::size_t axis, const AxisMap& map, const Selection& s) {
  if (!has_known_size(node.input(1))) return false;
  if (!place_in_target(node, axis)) return map[0].has_value();
  return map[0] || s.count.is_known() || s.places != nullptr;
}

void adjust_expand(Graph& graph, Node& node, std::size_t axis, const AxisMap& map, const Selection& s) {
  const auto at = place_in_target(node, axis);
  if (!at) return;
  Builder b(graph, &node, node.name);
  Entry entry{*at, 1};  // as long as the input is
  if (!map[0] && s.count.is_known()) entry.number = s.count.value();
  if (!map[0] && !s.count.is_known()) entry.computed = b.op("Shape", {s.places});
  graph.set_input(node, 1, replaced(b, node.input(1), entry));
}

void adjust_reshape(Graph& graph, Node& node, std::size_t axis, const AxisMap& map, const Selection& s) {
  Builder b(graph, &node, node.name);
  const auto entry = entry_of_reshape(node, axis, *map[0], s.count);
  graph.set_input(node, 1, entry ? replaced(b, node.input(1), *entry) : b.ints(*all_but(node, axis)));
}

/// 0, 1, ... up to the extent of an axis of x.
Value* counted(Builder& b, Value* x, std::size_t axis) {
  const Dim& extent = x->type.shape->at(axis);
  Value* size = extent.is_known() ? b.integer(extent.value())
                                  : b.op("Gather", {b.op("Shape", {x}), b.integer(static_cast<std::int64_t>(axis))});
  return b.op("Range", {b.integer(0), size, b.integer(1)});
}

/// Where the rows that are selected lie in all of x: rows are what stands behind `axis`.
Value* places_in(Builder& b, Value* x, std::size_t axis, const Selection& s) {
  Value* places = s.of(b, counted(b, x, axis), 0);
  Value* distance = b.op("Size", {counted(b, x, axis)});
  for (std::size_t outer = axis; outer-- > 0;) {
    Numbers behind(axis - outer);
    for (std::size_t i = 0; i < behind.size(); ++i) behind[i] = static_cast<std::int64_t>(i + 1);
    Value* number = counted(b, x, outer);
    Value* first = b.op("Unsqueeze", {b.op("Mul", {number, distance}), b.ints(behind)});
    places = b.op("Add", {first, places});
    distance = b.op("Mul", {distance, b.op("Size", {number})});
  }
  return places;
}

void adjust_dropout(Graph& graph, Node& node, std::size_t axis, const Selection& s) {
  Builder b(graph, &node, node.name);
  const std::string stream = dropout::stream_name(node);
  Value* places = places_in(b, node.input(0), axis, s);
  graph.rewrite(node, "backpass", "RowDropout", {node.input(0), node.input(1), node.input(2), places});
  node.attributes["stream"] = stream;
}

}  // namespace

bool can_adjust(const Node& node, std::size_t axis, const AxisMap& map, const Selection& s) {
  if (is_op(&node, "Expand")) return can_adjust_expand(node, axis, map, s);
  if (!is_op(&node, "Reshape")) return true;
  return has_known_size(node.input(1)) && (entry_of_reshape(node, axis, *map[0], s.count) || all_but(node, axis));
}

void adjust(Graph& graph, Node& node, std::size_t axis, const AxisMap& map, const Selection& s) {
  if (is_op(&node, "Expand")) return adjust_expand(graph, node, axis, map, s);
  if (is_op(&node, "Reshape")) return adjust_reshape(graph, node, axis, map, s);
  if (drops_at_random(node)) adjust_dropout(graph, node, axis, s);
}

}  // namespace backpass
