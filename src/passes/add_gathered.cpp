#include <algorithm>

#include "graph/builder.hpp"
#include "passes/list.hpp"
#include "passes/pattern.hpp"

namespace backpass {
namespace {

bool is_sum(const Node& node) { return pattern::is_op(&node, "Sum") || pattern::is_op(&node, "Add"); }

/// A gradient of Gather that nobody else reads.
bool is_gathered(const Graph& graph, const Value* v) {
  return pattern::is_op(v->producer, "GatherGrad", "com.microsoft") && v->readers.size() == 1 && !graph.is_output(v);
}

/// All terms have the extents of the sum: nothing is repeated.
bool has_equal_terms(const Node& sum) {
  return std::all_of(sum.inputs.begin(), sum.inputs.end(),
                     [&](const Value* term) { return pattern::has_same_type(term, sum.output(0)); });
}

/// The place of the gradient to be taken apart, the last one, so that another term is left; or the number of terms.
std::size_t place_of_rows(const Graph& graph, const Node& sum) {
  const std::size_t count = sum.inputs.size();
  for (std::size_t i = count; i-- > 0 && count > 1;) {
    if (is_gathered(graph, sum.input(i))) return i;
  }
  return count;
}

/// Takes one gradient out of a sum. The other terms are added first.
void add_rows(Graph& graph, Node& sum, std::size_t place) {
  const Node& rows = *sum.input(place)->producer;
  std::vector<Value*> others = sum.inputs;
  others.erase(others.begin() + static_cast<std::ptrdiff_t>(place));
  Builder b(graph, &sum, sum.name);
  Value* base = others.size() == 1 ? others.front() : b.op("Sum", others);
  const std::int64_t axis = rows.attr_int("axis", 0);
  graph.rewrite(sum, "backpass", "AddGathered", {base, rows.input(1), rows.input(2)});
  sum.attributes.clear();
  sum.attributes["axis"] = axis;
}

}  // namespace

void add_gathered(Graph& graph, Reports& reports) {
  bool has_changed = false;
  const std::vector<Node*> nodes = graph.nodes();
  for (Node* node : nodes) {
    if (!is_sum(*node) || !has_equal_terms(*node)) continue;
    const std::size_t place = place_of_rows(graph, *node);
    if (place == node->inputs.size()) continue;
    const Value* gradient = node->input(place);
    reports.push_back({.node = node->label(),
                       .what = concat("added the rows of ", gradient->producer->label(), " in ", node->label()),
                       .why = "the sum has a place for them already",
                       .bytes_saved = bytes_of(gradient)});
    add_rows(graph, *node, place);
    has_changed = true;
  }
  if (has_changed) graph.remove_dead_nodes();
}

}  // namespace backpass
