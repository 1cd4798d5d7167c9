#include "passes/move_gain.hpp"

#include <set>

#include "graph/op.hpp"
#include "passes/free_shapes.hpp"

namespace backpass {
namespace {

Dim bytes_per_element(DType dtype) {
  constexpr std::int64_t kMany = 8;  // elements, so that those smaller than a byte count, too
  return static_cast<std::int64_t>(byte_size(dtype, kMany) / kMany);
}

Dim bytes(const Value& v) { return product(*v.type.shape) * bytes_per_element(v.type.dtype); }

Shape with_extent(Shape shape, std::size_t axis, const Dim& extent) {
  shape[axis] = extent;
  return shape;
}

Dim operations(const Node& node) {
  if (node.def->flops != nullptr) return node.def->flops(node);
  return node.def->is_view ? Dim(0) : product(*node.output(0)->type.shape);
}

/// Values have other shapes as long as it lives, so that OpDef::flops can be asked what would be.
class OtherShapes {
 public:
  OtherShapes() = default;
  OtherShapes(const OtherShapes&) = delete;
  OtherShapes& operator=(const OtherShapes&) = delete;
  ~OtherShapes() {
    for (auto it = before_.rbegin(); it != before_.rend(); ++it) it->first->type.shape = std::move(it->second);
  }
  void set(Value* v, Shape shape) {
    before_.emplace_back(v, *v->type.shape);
    v->type.shape = std::move(shape);
  }

 private:
  std::vector<std::pair<Value*, Shape>> before_;
};

/// Places of what is selected, for a Dropout that has to know them.
Dim bytes_of_places(const Shape& shape, std::size_t axis, const Selection& s) {
  constexpr std::int64_t kPlace = sizeof(std::int64_t);
  const Dim outer = product(std::span(shape).first(axis));
  return outer * (s.most + 1) * kPlace;
}

}  // namespace

bool drops_at_random(const Node& node) {
  if (!is_op(&node, "Dropout")) return false;
  const Value* training = node.input(2);
  return training != nullptr && !(training->constant && !training->constant->as<bool>()[0]);
}

bool can_be_crossed(const Node& node) {
  if (!node.def->is_random || is_op(&node, "RowDropout", "backpass")) return true;
  if (!is_op(&node, "Dropout")) return false;
  return !drops_at_random(node) || find_op("backpass", "RowDropout") != nullptr;
}

Dim MoveGain::selected_bytes(const Value& v, std::size_t axis) const {
  return product(with_extent(*v.type.shape, axis, selection_.most)) * bytes_per_element(v.type.dtype);
}

Change MoveGain::crossing(const Node& node, std::size_t axis, const AxisMap& map, int depth) const {
  Change change;
  if (!node.def->is_view) {
    for (const Value* out : node.outputs) {
      if (graph_.use_count(out) > 0) change.bytes = change.bytes + selected_bytes(*out, axis) - bytes(*out);
    }
  }
  if (drops_at_random(node))
    change.bytes = change.bytes + bytes_of_places(*node.output(0)->type.shape, axis, selection_);
  std::set<std::pair<const Value*, std::size_t>> selected;
  const Dim before = operations(node);
  OtherShapes shrunk;
  for (std::size_t i = 0; i < map.size(); ++i) {
    if (!map[i] || !selected.emplace(node.inputs[i], *map[i]).second) continue;
    const Change more = having(node.inputs[i], *map[i], node, depth);
    change = {change.operations + more.operations, change.bytes + more.bytes};
  }
  for (const auto& [value, along] : selected) {
    auto* v = const_cast<Value*>(value);  // set back when this ends
    shrunk.set(v, with_extent(*v->type.shape, along, selection_.most));
  }
  for (Value* out : node.outputs) {
    if (out != nullptr) shrunk.set(out, with_extent(*out->type.shape, axis, selection_.most));
  }
  change.operations = change.operations + operations(node) - before;
  return change;
}

/// What is selected from x, which only `reader` needs, and only that of it.
Change MoveGain::having(const Value* x, std::size_t axis, const Node& reader, int depth) const {
  if (selection_.found(x, axis) != nullptr || (x->constant && selection_.is_constant())) return {};
  Change best{0, selected_bytes(*x, axis)};
  const Node* producer = x->producer;
  if (depth == 0 || producer == nullptr || !is_needed_by(graph_, *x, reader)) return best;
  const std::optional<AxisMap> map = axis_map(*producer, axis);
  if (!map || !can_be_crossed(*producer) || producer->outputs.size() > 1) return best;
  const Change further = crossing(*producer, axis, *map, depth - 1);
  const bool is_better =
      selection_.is_no_more(further.operations, 0) && selection_.is_no_more(further.bytes, best.bytes);
  return is_better ? further : best;
}

}  // namespace backpass
