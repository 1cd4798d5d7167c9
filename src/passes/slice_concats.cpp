#include <algorithm>

#include "passes/axis_map.hpp"
#include "passes/list.hpp"
#include "passes/slice_axes.hpp"

namespace backpass {
namespace {

/// Operands first to last of a Concat, and where the first of them begins in all of it.
struct Stretch {
  std::size_t first, last;
  std::int64_t begin, end;
};

/// The fewest operands in which [start, end) lies.
std::optional<Stretch> stretch_of(const Node& concat, std::size_t axis, std::int64_t start, std::int64_t end) {
  std::optional<Stretch> found;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < concat.inputs.size(); ++i) {
    const Dim& extent = concat.inputs[i]->type.shape->at(axis);
    if (!extent.is_known()) return std::nullopt;  // where the others begin is not known
    const std::int64_t next = at + extent.value();
    if (next > start && !found) found = Stretch{i, i, at, next};
    if (found && at < end && next > at) found = Stretch{found->first, i, found->begin, next};
    at = next;
    if (found && at >= end) return found;
  }
  return std::nullopt;
}

/// A Slice along the axis of a Concat reads the operands it lies in alone.
bool slice_less(Graph& graph, Node& node) {
  Node* concat = is_op(&node, "Slice") && node.input(0) != nullptr ? node.input(0)->producer : nullptr;
  if (!is_op(concat, "Concat")) return false;
  auto all = slice_axes(node);
  const bool knows_shapes = std::all_of(concat->inputs.begin(), concat->inputs.end(),
                                        [](const Value* v) { return v != nullptr && v->type.shape.has_value(); });
  if (!all || !knows_shapes || node.input(0)->ints) return false;
  const std::size_t axis = from_front(concat->attr_int("axis"), node.input(0)->type.shape->size());
  const auto at = all->find(static_cast<std::int64_t>(axis));
  if (!at || !is_plain_range(*all, *at) || all->ends[*at] == all->starts[*at]) return false;
  const auto part = stretch_of(*concat, axis, all->starts[*at], all->ends[*at]);
  if (!part || part->last - part->first + 1 == concat->inputs.size()) return false;
  // Several operands would be put together once more unless nobody else needs all of them.
  const bool is_one = part->first == part->last;
  if (!is_one && graph.only_reader(node.input(0)) != &node) return false;
  Builder b(graph, &node, node.name);
  const std::vector<Value*>& parts = concat->inputs;
  Value* x = parts[part->first];
  if (!is_one) {
    x = b.op("Concat",
             {parts.begin() + static_cast<std::ptrdiff_t>(part->first),
              parts.begin() + static_cast<std::ptrdiff_t>(part->last) + 1},
             {{"axis", static_cast<std::int64_t>(axis)}});
  }
  const bool is_whole = all->starts[*at] == part->begin && all->ends[*at] == part->end;
  all->starts[*at] -= part->begin;
  all->ends[*at] -= part->begin;
  if (is_whole) all->erase(*at);
  if (all->axes.empty()) {
    node.attributes.clear();
    graph.rewrite(node, "", "Identity", {x});
    if (!graph.is_output(node.output(0))) graph.replace_uses(node.output(0), x);
    return true;
  }
  graph.set_inputs(node, all->inputs(b, x));
  return true;
}

}  // namespace

void slice_concats(Graph& graph, Reports& reports) {
  bool has_changed = false;
  const std::vector<Node*> nodes = graph.nodes();
  for (Node* node : nodes) {
    const std::string label = node->label();
    const Value* all = node->input(0);
    const std::string saved = all != nullptr ? bytes_of(all) : "";
    if (!slice_less(graph, *node)) continue;
    has_changed = true;
    reports.push_back({.node = label,
                       .what = "made " + label + " read the operands of " + all->producer->label() + " it lies in",
                       .why = "what was put together is taken apart again",
                       .bytes_saved = all->readers.empty() ? saved : "0"});
  }
  if (has_changed) graph.remove_dead_nodes();
}

}  // namespace backpass
