#include <algorithm>
#include <map>

#include "passes/axis_map.hpp"
#include "passes/list.hpp"
#include "passes/slice_axes.hpp"

namespace backpass {
namespace {

/// A reader that takes [start, end) of an axis, which goes with a single place of it where `takes_axis`.
struct Piece {
  Node* node;
  std::size_t axis;
  std::int64_t start, end;
  bool takes_axis;
};

std::optional<Piece> piece_of(Node* node, const Value* v) {
  if (node->input(0) != v) return std::nullopt;
  const Shape& shape = *v->type.shape;
  if (is_op(node, "Gather") && node->input(1)->type.shape && node->input(1)->type.shape->empty()) {
    const auto place = numbers_in(node->input(1));
    const std::size_t axis = from_front(node->attr_int("axis", 0), shape.size());
    if (!place || !shape[axis].is_known()) return std::nullopt;
    const std::int64_t at = place->front() < 0 ? place->front() + shape[axis].value() : place->front();
    return Piece{node, axis, at, at + 1, true};
  }
  const auto all = slice_axes(*node);
  if (!all || all->axes.size() != 1 || !is_plain_range(*all, 0)) return std::nullopt;
  return Piece{node, static_cast<std::size_t>(all->axes[0]), all->starts[0], all->ends[0], false};
}

/// Where they are one behind the other and make all of the axis, each of them once: sizes in order.
std::vector<std::int64_t> sizes_of(std::vector<Piece>& pieces, std::int64_t extent) {
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.start < b.start; });
  std::vector<std::int64_t> sizes;
  std::int64_t at = 0;
  for (const Piece& p : pieces) {
    if (p.start != at || p.end == p.start) return {};
    sizes.push_back(p.end - p.start);
    at = p.end;
  }
  return at == extent && sizes.size() > 1 ? sizes : std::vector<std::int64_t>{};
}

void replace(Graph& graph, const std::vector<Piece>& pieces, const std::vector<std::int64_t>& sizes) {
  Node* first = *std::find_if(graph.nodes().begin(), graph.nodes().end(), [&](const Node* n) {
    return std::any_of(pieces.begin(), pieces.end(), [&](const Piece& p) { return p.node == n; });
  });
  Builder b(graph, first, first->input(0)->name);
  const auto axis = static_cast<std::int64_t>(pieces.front().axis);
  const std::vector<Value*> parts = b.ops("Split", {first->input(0), b.ints(sizes)}, sizes.size(), {{"axis", axis}});
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    Node& node = *pieces[i].node;
    node.attributes.clear();
    std::vector<Value*> reads{parts[i]};
    if (pieces[i].takes_axis) reads.push_back(b.ints({axis}));
    graph.rewrite(node, "", pieces[i].takes_axis ? "Squeeze" : "Identity", reads);
    if (!pieces[i].takes_axis && !graph.is_output(node.output(0))) graph.replace_uses(node.output(0), parts[i]);
  }
}

bool split_readers(Graph& graph, Value* v, Reports& reports) {
  if (v == nullptr || !v->type.is_tensor() || !v->type.shape || v->ints || v->constant) return false;
  std::map<std::size_t, std::vector<Piece>> by_axis;
  for (Node* reader : v->readers) {
    if (const auto piece = piece_of(reader, v)) by_axis[piece->axis].push_back(*piece);
  }
  for (auto& [axis, pieces] : by_axis) {
    const Dim& extent = v->type.shape->at(axis);
    const auto sizes = extent.is_known() ? sizes_of(pieces, extent.value()) : std::vector<std::int64_t>{};
    if (sizes.empty()) continue;
    const std::string label = pieces.front().node->label();
    reports.push_back({.node = label,
                       .what = concat("made ", label, " and ", pieces.size() - 1, " more one Split of '", v->name, "'"),
                       .why = "together they take all of it, so that its gradient is put together instead of added up",
                       .bytes_saved = "0"});
    replace(graph, pieces, sizes);
    return true;
  }
  return false;
}

}  // namespace

void slices_to_split(Graph& graph, Reports& reports) {
  bool has_changed = false;
  std::vector<Value*> values = graph.inputs;
  for (const Node* node : graph.nodes()) values.insert(values.end(), node->outputs.begin(), node->outputs.end());
  for (Value* v : values) has_changed = split_readers(graph, v, reports) || has_changed;
  if (has_changed) graph.remove_dead_nodes();
}

}  // namespace backpass
