#include "passes/row_needs.hpp"

#include <algorithm>

#include "passes/row_values.hpp"

namespace backpass {

RowNeeds::RowNeeds(Graph& graph, std::vector<RowSpace> spaces)
    : graph_(graph), extents_(graph), spaces_(std::move(spaces)) {
  for (const RowSpace& space : spaces_) space_sets_.push_back({.space = &space});
  find_sites();
  do {
    sweep();
  } while (flip_one());
}

const RowNeed* RowNeeds::need(const Value* v) const {
  const auto it = needs_.find(v);
  return it == needs_.end() ? nullptr : &it->second;
}

const std::vector<RowOperand>* RowNeeds::operands(const Node* node) const {
  const auto it = operands_.find(node);
  return it == operands_.end() ? nullptr : &it->second;
}

bool RowNeeds::is_wanted(const Value* v) const { return need(v) != nullptr || whole_.count(v) != 0; }

const RowSet* RowNeeds::set_of(const RowSpace& space) const {
  return &space_sets_[static_cast<std::size_t>(&space - spaces_.data())];
}

void RowNeeds::find_sites() {
  for (AttentionSite& site : attention_sites(graph_)) sites_.push_back({std::move(site)});
  for (std::size_t i = 0; i < sites_.size(); ++i) {
    const AttentionSite& site = sites_[i].attention;
    site_of_[site.result] = i;
    for (const Node* node : site.nodes) {
      if (node != site.result) inside_.insert(node);
    }
  }
}

void RowNeeds::sweep() {
  needs_.clear(), whole_.clear(), operands_.clear(), selections_.clear(), sets_.clear();
  conflict_ = nullptr;
  for (const Value* v : graph_.outputs) want_whole(v, nullptr);
  const std::vector<Node*>& nodes = graph_.nodes();
  for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) visit(**it);
}

/// The order of rows that a selection assumes, sequence by sequence, is not that of attention before it: it must be the
/// other one.
bool RowNeeds::flip_one() { return conflict_ != nullptr && flipped_.insert(conflict_->node).second; }

void RowNeeds::visit(Node& node) {
  if (inside_.count(&node) != 0) return;
  if (const auto site = site_of_.find(&node); site != site_of_.end()) return visit_site(sites_[site->second]);
  const auto wanted = [&](const Value* v) { return is_wanted(v); };
  if (std::none_of(node.outputs.begin(), node.outputs.end(), wanted)) return;
  const std::optional<RowSelection> selection = row_selection(node);
  // Who chooses rows of a table is an embedding; of what was computed, its choice is what is needed of that.
  if (selection && selection->data()->producer != nullptr && visit_selection(*selection)) return;
  if (!visit_rows(node)) want_inputs_whole(node);
}

/// Rows of a node's results that are needed, all of one set, by rows of its operands.
bool RowNeeds::visit_rows(Node& node) {
  const RowNeed* wanted = nullptr;
  std::vector<std::optional<RowLayout>> layouts;
  for (const Value* v : node.outputs) {
    layouts.emplace_back();
    if (!is_wanted(v)) continue;
    const RowNeed* found = need(v);
    if (found == nullptr || (wanted != nullptr && wanted->set != found->set)) return false;
    wanted = found;
    layouts.back() = found->layout;
  }
  std::optional<std::vector<RowOperand>> operands = wanted == nullptr ? std::nullopt : row_operands(node, layouts);
  if (!operands || !can_pack(node, *wanted, *operands)) return false;
  const RowNeed of_result = *wanted;
  for (std::size_t i = 0; i < operands->size(); ++i) {
    const RowOperand& operand = (*operands)[i];
    const bool has_all_rows = operand.layout && operand.layout->has_rows() && !operand.is_part;
    if (node.inputs[i] == nullptr) continue;
    if (has_all_rows) {
      want(node.inputs[i], {of_result.set, *operand.layout, of_result.origin}, &node);
    } else {
      want_whole(node.inputs[i], &node);
    }
  }
  operands_[&node] = std::move(*operands);
  return true;
}

bool RowNeeds::can_pack(const Node& node, const RowNeed& wanted, const std::vector<RowOperand>& operands) const {
  const bool fits = std::all_of(operands.begin(), operands.end(), [&](const RowOperand& operand) {
    return !operand.layout || can_take_rows(*operand.layout, extents_);
  });
  if (!fits || node.op == "RowDropout") return false;
  // What a Dropout draws goes by the place of an element in memory.
  if (node.op == "Dropout") return rows_lead(wanted.layout);
  return node.op != "Gemm" || !wanted.layout.is_kept(0);
}

bool RowNeeds::visit_selection(const RowSelection& selection) {
  const Value* result = selection.node->output(0);
  const Shape& shape = *selection.data()->type.shape;
  for (std::size_t i = 0; i < selection.row_axes; ++i) {
    if (!extents_.has(shape[i])) return false;
  }
  const RowNeed* of_result = need(result);
  const std::size_t given = result->type.shape->size() + selection.row_axes - shape.size();
  if (of_result != nullptr && !(of_result->layout == RowLayout::leading(*result->type.shape, given))) return false;
  choosers_.push_back(selection);
  const RowSelection& chooser = choosers_.back();
  std::optional<RowNeed> wanted;
  if (!spaces_.empty()) {
    wanted = need_in_space(chooser);
  } else if (chooses_fewer(selection)) {
    sets_.push_back({.selection = &chooser, .of_result = of_result == nullptr ? nullptr : of_result->set});
    wanted = {&sets_.back(), RowLayout::leading(shape, selection.row_axes), &chooser};
  }
  if (!wanted) return false;
  selections_.push_back({selection, *wanted, of_result == nullptr ? nullptr : of_result->set});
  want(selection.data(), *wanted, selection.node);
  for (std::size_t i = 1; i < selection.node->inputs.size(); ++i) want_whole(selection.node->inputs[i], selection.node);
  return true;
}

/// In the numbering of the one space that has as many rows.
std::optional<RowNeed> RowNeeds::need_in_space(const RowSelection& selection) {
  const Shape& shape = *selection.data()->type.shape;
  const RowLayout leading = RowLayout::leading(shape, selection.row_axes);
  for (const RowSpace& space : spaces_) {
    if (!(leading.row_count() == space.count())) continue;
    if (flipped_.count(selection.node) == 0) return RowNeed{set_of(space), leading, &selection};
    RowLayout by_position{{{{space.length, Dim(1)}, {space.batch, space.length}}}};
    Shape rows(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(selection.row_axes));
    std::optional<RowLayout> layout = regrouped(by_position, rows);
    if (!layout) continue;
    layout->axes.insert(layout->axes.end(), leading.axes.begin() + static_cast<std::ptrdiff_t>(selection.row_axes),
                        leading.axes.end());
    return RowNeed{set_of(space), *layout, &selection};
  }
  return std::nullopt;
}

void RowNeeds::visit_site(Site& site) {
  const AttentionSite& a = site.attention;
  site.queries = site.keys = nullptr;
  if (!is_wanted(a.result->output(0))) return;
  const bool is_empty = a.queries().is(0) || a.keys().is(0);
  if (is_empty || !extents_.has(a.queries()) || !extents_.has(a.keys())) return want_all_of(a);
  const RowNeed* of_result = a.is_ragged ? nullptr : need(a.result->output(0));
  std::optional<AttentionLayouts> layouts;
  if (of_result != nullptr) layouts = attention_layouts(a, of_result->layout);
  if (layouts && !fits(*layouts)) layouts.reset();
  if (layouts) {
    site.queries = of_result->set;
    want(a.q, {of_result->set, layouts->q, nullptr}, a.result);
  } else {
    layouts = layouts_of_keys(a);
    if (layouts && !fits(*layouts)) layouts.reset();
    want_whole(a.q, a.result);
  }
  const RowSpace* space = layouts ? space_of_keys(site, *layouts) : nullptr;
  if (space != nullptr) {
    site.keys = set_of(*space);
    want(a.k, {site.keys, layouts->k, nullptr}, a.result);
    want(a.v, {site.keys, layouts->v, nullptr}, a.result);
  } else {
    want_whole(a.k, a.result), want_whole(a.v, a.result);
  }
  want_rest(a);
}

/// What the operator, or those it is written in, read besides.
void RowNeeds::want_rest(const AttentionSite& a) {
  for (const Node* node : a.nodes) {
    for_each_read(*node, [&](const Value* v) {
      if (v != a.q && v != a.k && v != a.v && (v->producer == nullptr || a.nodes.count(v->producer) == 0))
        want_whole(v, a.result);
    });
  }
}

void RowNeeds::want_all_of(const AttentionSite& a) {
  for (const Value* v : {a.q, a.k, a.v}) want_whole(v, a.result);
  want_rest(a);
}

bool RowNeeds::fits(const AttentionLayouts& layouts) const {
  for (const RowLayout* layout : {&layouts.q, &layouts.k, &layouts.v}) {
    if (!can_take_rows(*layout, extents_)) return false;
    for (const RowFactor& row : layout->row_factors()) {
      if (!extents_.has(row.extent)) return false;
    }
  }
  return true;
}

/// Where all queries are there.
std::optional<AttentionLayouts> RowNeeds::layouts_of_keys(const AttentionSite& a) {
  const Shape &k = *a.k->type.shape, &v = *a.v->type.shape;
  if (a.is_ragged) return AttentionLayouts{{}, RowLayout::leading(k, 1), RowLayout::leading(v, 1)};
  if (a.may_hold_heads_in_batch()) return std::nullopt;
  return AttentionLayouts{sequence_layout(*a.q->type.shape, a.q_axes, 1), sequence_layout(k, a.k_axes, 1),
                          sequence_layout(v, a.v_axes, 1)};
}

/// The space keys are rows of, if what its queries see is known: they are rows of the same set, or of another space.
const RowSpace* RowNeeds::space_of_keys(const Site& site, const AttentionLayouts& layouts) const {
  const AttentionSite& a = site.attention;
  for (const RowSpace& space : spaces_) {
    if (!(space.length == a.keys()) || !(layouts.k.row_count() == space.count())) continue;
    const bool is_self = a.queries() == space.length;
    if (!is_self || a.is_ragged || site.queries == set_of(space)) return &space;
  }
  return nullptr;
}

void RowNeeds::want_inputs_whole(const Node& node) {
  for_each_read(node, [&](const Value* v) { want_whole(v, &node); });
}

void RowNeeds::want_whole(const Value* v, const Node* reader) {
  needs_.erase(v);
  whole_.emplace(v, reader);
}

void RowNeeds::want(const Value* v, const RowNeed& wanted, const Node* reader) {
  if (whole_.count(v) != 0) return;
  if (!can_take_rows(wanted.layout, extents_)) return want_whole(v, reader);
  const auto [it, is_new] = needs_.emplace(v, wanted);
  if (is_new) return;
  const RowNeed& before = it->second;
  if (before.set == wanted.set && before.layout == wanted.layout) {
    if (wanted.origin == nullptr) it->second.origin = nullptr;
    return;
  }
  if (before.set == wanted.set && conflict_ == nullptr) {
    conflict_ = before.origin != nullptr && flipped_.count(before.origin->node) == 0 ? before.origin : wanted.origin;
  }
  want_whole(v, reader);
}

/// Who wants a value whole, who wants what that computes, and so on to an output.
std::string RowNeeds::path_from(const Value* v) const {
  constexpr std::size_t kShown = 2;
  std::string path;
  for (std::size_t length = 0;; ++length) {
    const auto it = whole_.find(v);
    if (it == whole_.end()) return path;
    const Node* reader = it->second;
    const std::string last = reader == nullptr ? "output '" + v->name + "'" : reader->label();
    const Value* next = nullptr;
    for (const Value* out : reader == nullptr ? std::vector<Value*>() : reader->outputs) {
      if (out != nullptr && whole_.count(out) != 0) next = out;
    }
    if (length < kShown || next == nullptr) {
      if (length > kShown) path += concat(", ", length - kShown, " more nodes");
      path += (path.empty() ? "" : ", ") + last;
    }
    if (next == nullptr) return path;
    v = next;
  }
}

std::string RowNeeds::obstacle(const RowSpace& space) const {
  for (const Site& site : sites_) {
    const AttentionSite& a = site.attention;
    if (a.is_ragged || !(a.keys() == space.length)) continue;
    if (site.queries == nullptr && whole_.count(a.result->output(0)) != 0) return path_from(a.result->output(0));
  }
  return "";
}

}  // namespace backpass
