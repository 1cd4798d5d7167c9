#include "passes/pack_rows.hpp"

#include <algorithm>

#include "graph/infer.hpp"
#include "graph/op.hpp"
#include "passes/packed_node.hpp"
#include "passes/row_values.hpp"

namespace backpass {
namespace {

std::string name_for(const Node& node) { return node.name.empty() ? "rows" : node.name + "_rows"; }

std::int64_t width_of(const RowLayout& layout) { return product(layout.kept_extents()).value(); }

Dim bytes_of_results(const Node& node) {
  Dim sum = 0;
  for (const Value* v : node.outputs) {
    if (v == nullptr || !v->type.shape || v->readers.empty()) continue;
    sum = sum + product(*v->type.shape) * Dim(static_cast<std::int64_t>(byte_size(v->type.dtype, 1)));
  }
  return sum;
}

}  // namespace

Dim operations_of_node(const Node& node) {
  if (node.def == nullptr || node.def->is_view) return 0;
  if (node.def->flops != nullptr) return node.def->flops(node);
  return node.output(0)->type.shape ? product(*node.output(0)->type.shape) : Dim(0);
}

RowPacker::RowPacker(Graph& graph, RowNeeds& needs) : graph_(graph), needs_(needs), extents_(graph) {}

bool RowPacker::is_moved(const RowNeeds::Selection& selection) const {
  const Value* v = selection.selection.data();
  while (v->producer != nullptr && needs_.need(v) != nullptr && needs_.need(v)->set == selection.of_data.set) {
    const bool is_site = std::any_of(needs_.sites().begin(), needs_.sites().end(), [&](const RowNeeds::Site& site) {
      return site.attention.result == v->producer && site.queries == selection.of_data.set;
    });
    if (is_site) return true;
    if (needs_.operands(v->producer) == nullptr) return false;
    if (!arranges(*v->producer) && v->producer->op != "Transpose" && v->producer->op != "Identity") return true;
    v = v->producer->input(0);
  }
  return false;
}

void RowPacker::set_places(const RowSet* set, Value* places) { places_[set] = places; }

Value* RowPacker::chosen(const RowSelection& selection) {
  Value*& found = chosen_[selection.node];
  if (found == nullptr) {
    Builder b(graph_, selection.node, name_for(*selection.node));
    found = chosen_places(b, selection, extents_);
  }
  return found;
}

Value* RowPacker::places_of(const RowNeeds::Selection& selection) {
  Builder b(graph_, selection.selection.node, name_for(*selection.selection.node));
  Value* all = chosen(selection.selection);
  if (all->type.shape->size() != 1) all = b.op("Reshape", {all, b.ints({-1})});
  const RowLayout& layout = selection.of_data.layout;
  if (layout == RowLayout::leading(*selection.selection.data()->type.shape, selection.selection.row_axes)) return all;
  // Numbered in the order of axes; the space has another.
  Value* sum = nullptr;
  Dim local = 1;
  const std::vector<RowFactor> factors = layout.row_factors();
  for (auto factor = factors.rbegin(); factor != factors.rend(); ++factor) {
    Value* index = local.is(1) ? all : b.op("Div", {all, extents_.get(b, local)});
    index = b.op("Mod", {index, extents_.get(b, factor->extent)});
    if (!factor->stride->is(1)) index = b.op("Mul", {index, extents_.get(b, *factor->stride)});
    sum = sum == nullptr ? index : b.op("Add", {sum, index});
    local = local * factor->extent;
  }
  return sum;
}

Value* RowPacker::places(Builder& b, const RowSet* set) {
  Value*& found = places_[set];
  if (found != nullptr) return found;
  ensure(set->selection != nullptr, "rows of a space without places");
  Value* all = chosen(*set->selection);
  if (all->type.shape->size() != 1) all = b.op("Reshape", {all, b.ints({-1})});
  if (set->of_result != nullptr) all = b.op("Gather", {all, places(b, set->of_result)}, {{"axis", std::int64_t{0}}});
  return places_[set] = all;
}

/// Number of each place among those of a set.
Value* RowPacker::inverse(Builder& b, const RowSet* set) {
  Value*& found = inverse_[set];
  if (found != nullptr) return found;
  Value* rows = places(b, set);
  Value* count = b.op("Squeeze", {b.op("Shape", {rows}), b.ints({0})});
  Value* numbers = b.op("Range", {b.integer(0), count, b.integer(1)});
  Value* total = b.op("Mul", {extents_.get(b, set->space->batch), extents_.get(b, set->space->length)});
  Tensor zero(DType::int64, {1});
  *zero.as<std::int64_t>() = 0;
  Value* none = b.op("ConstantOfShape", {total}, {{"value", zero}});
  return found = b.op("ScatterElements", {none, rows, numbers}, {{"axis", std::int64_t{0}}});
}

Value* RowPacker::packed(Builder& b, Value* v, const RowLayout& layout, const RowSet* set) {
  Value*& found = packed_[{v, set}];
  if (found == nullptr) {
    const RowNeed* need = needs_.need(v);
    ensure(need == nullptr || need->set == set || packed_.count({v, need->set}) == 0, "rows of '", v->name, "' twice");
    found = take_rows(b, v, layout, false, places(b, set), extents_);
  }
  return found;
}

void RowPacker::run() {
  std::unordered_map<const Node*, const RowNeeds::Selection*> selections;
  std::unordered_map<const Node*, RowNeeds::Site*> sites;
  for (const auto& selection : needs_.selections()) {
    if (is_moved(selection)) selections[selection.selection.node] = &selection;
  }
  for (RowNeeds::Site& site : needs_.sites()) {
    if (site.queries != nullptr || site.keys != nullptr) sites[site.attention.result] = &site;
  }
  const std::vector<Node*> nodes = graph_.nodes();
  for (Node* node : nodes) {
    if (const auto site = sites.find(node); site != sites.end()) {
      pack_site(*site->second);
    } else if (needs_.operands(node) != nullptr) {
      pack(*node);
    } else if (const auto selection = selections.find(node); selection != selections.end()) {
      pack_selection(*selection->second);
    }
  }
  graph_.sort_topologically();
  graph_.remove_dead_nodes();
}

void RowPacker::note(const Node& before, const Value* now, const RowSet* set) {
  Saving& saving = savings_[set];
  saving.operations = saving.operations + operations_of_node(before);
  saving.bytes = saving.bytes + bytes_of_results(before);
  ++saving.nodes;
  if (now->producer == nullptr || now->producer == &before) return;
  saving.operations = saving.operations - operations_of_node(*now->producer);
  saving.bytes =
      saving.bytes - product(*now->type.shape) * Dim(static_cast<std::int64_t>(byte_size(now->type.dtype, 1)));
}

void RowPacker::pack(Node& node) {
  const auto wanted = std::find_if(node.outputs.begin(), node.outputs.end(),
                                   [&](const Value* v) { return v != nullptr && needs_.need(v) != nullptr; });
  const RowSet* set = needs_.need(*wanted)->set;
  Builder b(graph_, &node, name_for(node));
  const std::vector<Value*> results = pack_results(b, node, set);
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == nullptr || needs_.need(node.outputs[i]) == nullptr) continue;
    const RowLayout& layout = needs_.need(node.outputs[i])->layout;
    const Shape& shape = *results[i]->type.shape;
    ensure(Shape(shape.begin() + 1, shape.end()) == layout.kept_extents(), node.label(), " packed to ",
           to_string(shape), ", expected rows of ", to_string(layout.kept_extents()));
    packed_[{node.outputs[i], set}] = results[i];
  }
  note(node, results[static_cast<std::size_t>(wanted - node.outputs.begin())], set);
}

std::vector<Value*> RowPacker::packed_inputs(Builder& b, const Node& node, const RowSet* set, const RowLayout& out) {
  const std::vector<RowOperand>& operands = *needs_.operands(&node);
  std::vector<Value*> inputs = node.inputs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] == nullptr || !operands[i].layout) continue;
    const RowLayout& layout = *operands[i].layout;
    const bool has_rows = layout.has_rows();
    if (has_rows && operands[i].is_part) {
      inputs[i] = take_rows(b, inputs[i], layout, true, places(b, set), extents_);
    } else if (has_rows) {
      inputs[i] = packed(b, inputs[i], layout, set);
    }
    const bool is_first_of_gemm = node.op == "Gemm" && i == 0;
    if (stretches(node) && !is_first_of_gemm) inputs[i] = aligned(b, inputs[i], layout, out, has_rows);
  }
  return inputs;
}

std::vector<Value*> RowPacker::pack_results(Builder& b, const Node& node, const RowSet* set) {
  const auto wanted = std::find_if(node.outputs.begin(), node.outputs.end(),
                                   [&](const Value* v) { return v != nullptr && needs_.need(v) != nullptr; });
  const RowLayout& out = needs_.need(*wanted)->layout;
  return packed_results(
      b, {node, *needs_.operands(&node), out, packed_inputs(b, node, set, out), places(b, set), extents_});
}

void RowPacker::pack_selection(const RowNeeds::Selection& found) {
  Node& node = *found.selection.node;
  Builder b(graph_, &node, name_for(node));
  const RowSet* set = found.of_data.set;
  Value* rows = packed(b, node.inputs[0], found.of_data.layout, set);
  if (set->space != nullptr) {
    Value* numbers = b.op("Gather", {inverse(b, set), places_of(found)}, {{"axis", std::int64_t{0}}});
    rows = b.op("Gather", {rows, numbers}, {{"axis", std::int64_t{0}}});
  }
  const Shape& out = *node.output(0)->type.shape;
  const std::size_t given = out.size() + found.selection.row_axes - node.inputs[0]->type.shape->size();
  const RowLayout layout = RowLayout::leading(out, given);
  if (found.of_result != nullptr && set->space == nullptr) {
    packed_[{node.output(0), found.of_result}] = with_kept(b, rows, layout.kept_extents());
    return;
  }
  const Shape features(out.begin() + static_cast<std::ptrdiff_t>(given), out.end());
  if (given == 1) {
    rows = with_kept(b, rows, features);
  } else {
    const Dims known = to_dims(features);
    Value* shape = b.op("Concat", {b.op("Shape", {chosen(found.selection)}), b.ints({known.begin(), known.end()})},
                        {{"axis", std::int64_t{0}}});
    rows = b.op("Reshape", {rows, shape}, {{"allowzero", std::int64_t{1}}});
  }
  graph_.replace_uses(node.output(0), rows);
}

Value* RowPacker::all_rows(Builder& b, Value* v, const RowLayout& layout, std::int64_t width) {
  return with_kept(b, rows_first(b, v, layout, extents_), {Dim(width)});
}

void RowPacker::pack_site(RowNeeds::Site& site) {
  AttentionSite& a = site.attention;
  Node& node = *a.result;
  Builder b(graph_, &node, name_for(node));
  if (a.is_ragged) {
    graph_.set_input(node, 1, packed(b, a.k, RowLayout::leading(*a.k->type.shape, 1), site.keys));
    graph_.set_input(node, 2, packed(b, a.v, RowLayout::leading(*a.v->type.shape, 1), site.keys));
    graph_.set_input(node, 4, places(b, site.keys));
    infer_node(graph_, node);
    return;
  }
  const RowNeed* need = site.queries == nullptr ? nullptr : needs_.need(node.output(0));
  AttentionLayouts layouts;
  if (need != nullptr) {
    layouts = *attention_layouts(a, need->layout);
  } else {
    layouts = {sequence_layout(*a.q->type.shape, a.q_axes, 1), sequence_layout(*a.k->type.shape, a.k_axes, 1),
               sequence_layout(*a.v->type.shape, a.v_axes, 1)};
  }
  auto operand = [&](Value* v, const RowLayout& layout, const RowSet* set) {
    const std::int64_t width = width_of(layout);
    return set == nullptr ? all_rows(b, v, layout, width) : with_kept(b, packed(b, v, layout, set), {Dim(width)});
  };
  const Dim batch = floor_div(layouts.q.row_count(), a.queries());
  auto heads = [&](std::int64_t given, const RowLayout& layout) {
    return given != 0 ? given : width_of(layout) / a.q->type.shape->back().value();
  };
  AttributeList attributes = a.attributes;
  attributes.emplace_back("q_num_heads", heads(a.heads, layouts.q));
  attributes.emplace_back("kv_num_heads", heads(a.kv_heads, layouts.k));
  std::vector<Value*> inputs{operand(a.q, layouts.q, site.queries),
                             operand(a.k, layouts.k, site.keys),
                             operand(a.v, layouts.v, site.keys),
                             site.queries == nullptr ? nullptr : places(b, site.queries),
                             site.keys == nullptr ? nullptr : places(b, site.keys),
                             extents_.get(b, Shape{batch, a.queries(), a.keys()}),
                             mask_of(graph_, a),
                             a.ratio,
                             a.training};
  Value* y = b.op("RaggedAttention", inputs, attributes, "backpass");
  if (need != nullptr) {
    packed_[{node.output(0), site.queries}] = with_kept(b, y, need->layout.kept_extents());
    note(node, y, site.queries);
    return;
  }
  const Shape& out = *node.output(0)->type.shape;
  if (out.size() == 3)
    return graph_.replace_uses(node.output(0),
                               b.op("Reshape", {y, extents_.get(b, out)}, {{"allowzero", std::int64_t{1}}}));
  Value* apart =
      b.op("Reshape", {y, extents_.get(b, Shape{out[0], out[2], out[1], out[3]})}, {{"allowzero", std::int64_t{1}}});
  graph_.replace_uses(node.output(0), b.op("Transpose", {apart}, {{"perm", std::vector<std::int64_t>{0, 2, 1, 3}}}));
}

}  // namespace backpass
