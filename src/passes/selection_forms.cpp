#include "passes/selection_forms.hpp"

#include <algorithm>

#include "passes/free_shapes.hpp"
#include "passes/lift_reshape.hpp"
#include "passes/move_adjust.hpp"
#include "passes/move_gain.hpp"
#include "passes/slice_axes.hpp"

namespace backpass {
namespace {

bool knows_shape(const Value* v) { return v != nullptr && v->type.is_tensor() && v->type.shape.has_value(); }

/// Something might be there to move through, and nobody else reads what comes from it.
bool is_promising(const Graph& graph, const Node& node, std::size_t axis) {
  const Value* v = node.input(0);
  if (!knows_shape(v) || v->producer == nullptr || v->ints || !is_needed_by(graph, *v, node)) return false;
  return axis_map(*v->producer, axis) && can_be_crossed(*v->producer);
}

void to_gather(Graph& graph, Node& node, Value* places, std::size_t axis) {
  node.attributes.clear();
  node.attributes["axis"] = static_cast<std::int64_t>(axis);
  graph.rewrite(node, "", "Gather", {node.input(0), places});
}

bool rewrite_compress(Graph& graph, Node& node) {
  if (!node.has_attribute("axis") || !knows_shape(node.input(0))) return false;
  const std::size_t axis = from_front(node.attr_int("axis"), node.input(0)->type.shape->size());
  if (!is_promising(graph, node, axis)) return false;
  Builder b(graph, &node, node.name);
  Value* places = b.op("Squeeze", {b.op("NonZero", {node.input(1)}), b.ints({0})});
  to_gather(graph, node, places, axis);
  node.output(0)->type.shape->at(axis) = places->type.shape->at(0);
  return true;
}

/// Axes along which the Slice might move become Slices of their own, in front of it.
bool take_apart(Graph& graph, Node& node, SliceAxes all) {
  const Shape shape = *node.input(0)->type.shape;
  const Shape& out = *node.output(0)->type.shape;
  std::vector<std::int64_t> movable;
  for (std::int64_t axis : all.axes) {
    const auto a = static_cast<std::size_t>(axis);
    if (!(out[a] == shape[a]) && is_promising(graph, node, a)) movable.push_back(axis);
  }
  if (movable.empty()) return false;
  if (movable.size() == all.axes.size()) movable.pop_back();  // the last one is what the node itself still does
  Builder b(graph, &node, node.name);
  Value* x = node.input(0);
  for (std::int64_t axis : movable) {
    const std::size_t at = *all.find(axis);
    SliceAxes one;
    one.add(axis, all.starts[at], all.ends[at], all.steps[at]);
    x = b.op("Slice", one.inputs(b, x));
    all.erase(at);
  }
  graph.set_inputs(node, all.inputs(b, x));
  return true;
}

bool rewrite_slice(Graph& graph, Node& node) {
  if (!knows_shape(node.input(0)) || !knows_shape(node.output(0)) || selection_of(node)) return false;
  if (const auto all = slice_axes(node)) return all->axes.size() > 1 && take_apart(graph, node, *all);
  const auto axes = node.input(3) != nullptr ? numbers_in(node.input(3)) : std::nullopt;
  if (!axes || !knows_shape(node.input(1)) || axes->size() != 1) return false;
  const std::size_t axis = from_front(axes->front(), node.input(0)->type.shape->size());
  if (!is_promising(graph, node, axis)) return false;
  Builder b(graph, &node, node.name);
  Value* x = node.input(0);
  const Dim& extent = x->type.shape->at(axis);
  Value* size = extent.is_known() ? b.integer(extent.value())
                                  : b.op("Gather", {b.op("Shape", {x}), b.integer(static_cast<std::int64_t>(axis))});
  Value* all = b.op("Range", {b.integer(0), size, b.integer(1)});
  std::vector<Value*> reads{all, node.input(1), node.input(2), b.ints({0})};
  if (node.input(4) != nullptr) reads.push_back(node.input(4));
  Value* places = b.op("Slice", reads);
  to_gather(graph, node, places, axis);
  node.output(0)->type.shape->at(axis) = places->type.shape->at(0);
  return true;
}

/// GatherND with a place or some of each batch is a Gather among the rows of all batches.
bool rewrite_gather_nd(Graph& graph, Node& node) {
  if (node.attr_int("batch_dims", 0) != 1 || !knows_shape(node.input(0)) || !knows_shape(node.input(1))) return false;
  Value* x = node.input(0);
  const Shape indices = *node.input(1)->type.shape;
  const bool has_list = indices.size() == 3;
  if ((!has_list && indices.size() != 2) || !indices.back().is(1) || x->type.shape->size() < 2) return false;
  const bool is_read_once = x->producer != nullptr && is_needed_by(graph, *x, node);
  if (!is_read_once || !works_on_rows(*x->producer, 2) || (has_list && !surely_at_least(indices[1], 1))) return false;
  if (has_list && !indices[1].is_known()) return false;
  Value* rows = with_rows(graph, x, 2, &node);
  if (rows == nullptr) return false;
  Builder b(graph, &node, node.name);
  Value* extents = b.op("Shape", {x}, {{"end", std::int64_t{2}}});
  Value* length = b.op("Gather", {extents, b.integer(1)});
  Value* at = b.op("Cast", {node.input(1)}, {{"to", std::int64_t{7}}});
  at = b.op("Where", {b.op("Less", {at, b.integer(0)}), b.op("Add", {at, length}), at});
  Value* batch = b.op("Range", {b.integer(0), b.op("Gather", {extents, b.integer(0)}), b.integer(1)});
  Value* first = b.op("Unsqueeze", {b.op("Mul", {batch, length}), has_list ? b.ints({1, 2}) : b.ints({1})});
  Value* places = b.op("Reshape", {b.op("Add", {first, at}), b.ints({-1})});
  Value* taken = b.op("Gather", {rows, places}, {{"axis", std::int64_t{0}}});
  std::vector<std::int64_t> target{-1};
  if (has_list) target.push_back(indices[1].value());
  for (std::size_t i = 2; i < x->type.shape->size(); ++i) target.push_back(x->type.shape->at(i).value());
  node.attributes.clear();
  graph.rewrite(node, "", "Reshape", {taken, b.ints(target)});
  return true;
}

// ---- Parts of an axis.

constexpr std::int64_t kEnd = SliceAxes::kEnd;

/// [start, end) of an axis, and which value that is.
struct Part {
  Value* value;
  std::size_t axis;
  std::int64_t start, end;
};

bool add_slice(const Node& node, std::vector<Part>& parts) {
  const auto all = slice_axes(node);
  if (!all || all->axes.size() != 1 || !is_plain_range(*all, 0)) return false;
  parts.push_back({node.output(0), static_cast<std::size_t>(all->axes[0]), all->starts[0], all->ends[0]});
  return true;
}

bool add_split(const Graph& graph, const Node& node, std::vector<Part>& parts) {
  const std::size_t axis = from_front(node.attr_int("axis", 0), node.input(0)->type.shape->size());
  std::int64_t at = 0;
  for (Value* out : node.outputs) {
    if (out == nullptr || !knows_shape(out) || !out->type.shape->at(axis).is_known()) return false;
    const std::int64_t size = out->type.shape->at(axis).value();
    if (graph.use_count(out) > 0) parts.push_back({out, axis, at, at + size});
    at += size;
  }
  return true;
}

/// All that is read of v; nothing if that is no list of parts of one axis.
std::vector<Part> parts_of(const Graph& graph, const Value* v) {
  std::vector<Part> parts;
  bool has_split = false;
  for (const Node* reader : v->readers) {
    const bool is_split = is_op(reader, "Split") && reader->input(0) == v;
    const bool is_slice = is_op(reader, "Slice") && reader->input(0) == v;
    has_split = has_split || is_split;
    if (!is_split && !is_slice) return {};
    if (is_split ? !add_split(graph, *reader, parts) : !add_slice(*reader, parts)) return {};
    if (parts.empty() || parts.back().axis != parts.front().axis) return {};
  }
  return parts.size() > 1 || has_split ? parts : std::vector<Part>{};
}

Selection joined(Builder& b, const std::vector<Part>& parts, const Dim& whole) {
  Selection s;
  std::int64_t start = kEnd;
  std::int64_t end = 0;
  for (const Part& p : parts) {
    start = std::min(start, p.start);
    end = std::max(end, p.end);
  }
  s.axis = parts.front().axis;
  s.start = b.ints({start});
  s.end = b.ints({end});
  s.whole = whole;
  s.count = max((end == kEnd ? whole : min(Dim(end), whole)) - start, 0);
  s.most = s.count;
  return s;
}

bool pays(const Graph& graph, const Value& v, const Selection& s) {
  const auto map = axis_map(*v.producer, s.axis);
  if (!map || !can_be_crossed(*v.producer) || v.producer->outputs.size() > 1) return false;
  if (!can_adjust(*v.producer, s.axis, *map, s)) return false;
  try {
    const Change change = MoveGain(graph, s).of_crossing(*v.producer, s.axis, *map);
    return s.is_saving(change.operations, change.bytes);
  } catch (const DimOverflow&) {
    return false;
  }
}

void read_from(Graph& graph, Value* part_of_all, const Part& part, std::int64_t start) {
  Node* reader = part.value->producer;
  Builder b(graph, reader, reader->name);
  const std::int64_t end = part.end == kEnd ? kEnd : part.end - start;
  Value* made = b.op("Slice", {part_of_all, b.ints({part.start - start}), b.ints({end}),
                               b.ints({static_cast<std::int64_t>(part.axis)})});
  const bool is_output = graph.is_output(part.value);
  if (part.start == start && *made->type.shape == *part_of_all->type.shape && !is_output) made = part_of_all;
  const std::string name = part.value->name;
  graph.rename(part.value, name + "/part");
  graph.replace_uses(part.value, made);
  if (is_output) graph.rename(made, name);
  const bool is_done = std::all_of(reader->outputs.begin(), reader->outputs.end(),
                                   [&](const Value* v) { return graph.use_count(v) == 0; });
  if (is_done) graph.remove_node(reader);
}

bool join_readers(Graph& graph, Value* v) {
  if (!knows_shape(v) || v->producer == nullptr || v->ints || v->readers.empty() || graph.is_output(v)) return false;
  const std::vector<Part> parts = parts_of(graph, v);
  if (parts.empty()) return false;
  Builder b(graph, nullptr, v->name);
  const Selection s = joined(b, parts, v->type.shape->at(parts.front().axis));
  if (!s.shrinks() || !pays(graph, *v, s)) return false;
  Builder before(graph, parts.front().value->producer, v->name);
  Value* part_of_all = before.op("Slice", {v, s.start, s.end, b.ints({static_cast<std::int64_t>(s.axis)})});
  for (const Part& part : parts) read_from(graph, part_of_all, part, s.start->constant->to_ints().front());
  return true;
}

}  // namespace

bool rewrite_selections(Graph& graph) {
  bool has_changed = false;
  const std::vector<Node*> nodes = graph.nodes();
  for (Node* node : nodes) {
    if (is_op(node, "Compress")) has_changed = rewrite_compress(graph, *node) || has_changed;
    if (is_op(node, "GatherND")) has_changed = rewrite_gather_nd(graph, *node) || has_changed;
    if (is_op(node, "Slice")) has_changed = rewrite_slice(graph, *node) || has_changed;
  }
  return has_changed;
}

bool join_selections(Graph& graph) {
  bool has_changed = false;
  std::vector<Value*> values;
  for (Node* node : graph.nodes()) values.insert(values.end(), node->outputs.begin(), node->outputs.end());
  for (auto it = values.rbegin(); it != values.rend(); ++it) has_changed = join_readers(graph, *it) || has_changed;
  return has_changed;
}

}  // namespace backpass
