#include <algorithm>

#include "passes/axis_map.hpp"
#include "passes/list.hpp"
#include "passes/slice_axes.hpp"

namespace backpass {
namespace {

/// Numbers as far apart from each other, upwards; the distance.
std::optional<std::int64_t> distance_of(const std::vector<std::int64_t>& numbers) {
  if (numbers.empty() || numbers.front() < 0) return std::nullopt;
  const std::int64_t step = numbers.size() > 1 ? numbers[1] - numbers[0] : 1;
  for (std::size_t i = 1; i < numbers.size(); ++i) {
    if (numbers[i] - numbers[i - 1] != step) return std::nullopt;
  }
  return step > 0 ? std::optional(step) : std::nullopt;
}

/// A Gather whose list of places a Slice would take, too. Without knowing the extent nobody would miss places that are
/// not there.
bool gather_to_slice(Graph& graph, Node& node) {
  if (!is_op(&node, "Gather") || !node.input(0)->type.shape || !node.input(1)->type.shape) return false;
  const Shape& data = *node.input(0)->type.shape;
  if (node.input(1)->type.shape->size() != 1 || node.input(0)->ints) return false;
  const std::size_t axis = from_front(node.attr_int("axis", 0), data.size());
  const auto places = numbers_in(node.input(1));
  const auto step = places ? distance_of(*places) : std::nullopt;
  if (!step || !data[axis].is_known() || places->back() >= data[axis].value()) return false;
  SliceAxes all;
  all.add(static_cast<std::int64_t>(axis), places->front(), places->back() + 1, *step);
  Builder b(graph, &node, node.name);
  node.attributes.clear();
  graph.rewrite(node, "", "Slice", all.inputs(b, node.input(0)));
  return true;
}

/// The outer Slice's bounds along an axis in terms of what the inner one reads.
bool add_inner(SliceAxes& outer, const SliceAxes& inner, std::size_t i) {
  const auto at = outer.find(inner.axes[i]);
  if (!at) {
    outer.add(inner.axes[i], inner.starts[i], inner.ends[i], inner.steps[i]);
    return true;
  }
  if (!is_plain_range(inner, i) || outer.starts[*at] < 0 || outer.ends[*at] < 0 || outer.steps[*at] < 1) return false;
  constexpr std::int64_t kFar = SliceAxes::kEnd / 4;
  const std::int64_t start = inner.starts[i];
  if (start > kFar) return false;
  const std::int64_t end = outer.ends[*at] > kFar ? SliceAxes::kEnd : outer.ends[*at] + start;
  outer.starts[*at] = std::min(outer.starts[*at], kFar) + start;
  outer.ends[*at] = std::min(end, inner.ends[i]);
  return true;
}

/// A Slice of a Slice; the first stays if somebody else reads it.
bool merge_two(Graph& graph, Node& node) {
  Node* first = is_op(&node, "Slice") ? node.input(0)->producer : nullptr;
  if (!is_op(first, "Slice")) return false;
  auto outer = slice_axes(node);
  const auto inner = slice_axes(*first);
  if (!outer || !inner) return false;
  for (std::size_t i = 0; i < inner->axes.size(); ++i) {
    if (!add_inner(*outer, *inner, i)) return false;
  }
  Builder b(graph, &node, node.name);
  graph.set_inputs(node, outer->inputs(b, first->input(0)));
  return true;
}

}  // namespace

void merge_slices(Graph& graph, Reports& reports) {
  bool has_changed = false;
  const std::vector<Node*> nodes = graph.nodes();
  for (Node* node : nodes) {
    const std::string label = node->label();
    if (gather_to_slice(graph, *node)) {
      has_changed = true;
      reports.push_back({.node = label,
                         .what = "made " + label + " a Slice",
                         .why = "its places follow each other, so that nobody has to look them up",
                         .bytes_saved = "0"});
    }
    const Node* first = is_op(node, "Slice") ? node->input(0)->producer : nullptr;
    const std::string inner = first != nullptr ? first->label() : "";
    const std::string saved = first != nullptr ? bytes_of(first->output(0)) : "";
    if (!merge_two(graph, *node)) continue;
    has_changed = true;
    reports.push_back({.node = label,
                       .what = concat("merged ", label, " with ", inner),
                       .why = "a part of a part is a part",
                       .bytes_saved = first->output(0)->readers.empty() ? saved : "0"});
  }
  if (has_changed) graph.remove_dead_nodes();
}

}  // namespace backpass
