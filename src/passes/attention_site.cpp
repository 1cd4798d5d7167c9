#include "passes/attention_site.hpp"

#include <algorithm>
#include <cmath>

#include "ops/random/dropout.hpp"
#include "passes/match_attention.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kQ, kK, kV, kMask, kPastKey, kPastValue, kLengths, kRatio, kTraining };

const Shape* shape_of(const Value* v) {
  return v != nullptr && v->type.is_tensor() && v->type.shape ? &*v->type.shape : nullptr;
}

/// Nobody else reads what lies inside.
bool is_closed(const Graph& graph, const AttentionSite& site) {
  return std::all_of(site.nodes.begin(), site.nodes.end(), [&](const Node* node) {
    return std::all_of(node->outputs.begin(), node->outputs.end(), [&](const Value* v) {
      if (v == nullptr || v == site.result->output(0)) return true;
      return !graph.is_output(v) && std::all_of(v->readers.begin(), v->readers.end(),
                                                [&](const Node* reader) { return site.nodes.count(reader) != 0; });
    });
  });
}

bool has_float(const std::vector<WrittenMask>& masks) {
  return std::any_of(masks.begin(), masks.end(), [](const WrittenMask& m) { return is_float(m.value->type.dtype); });
}

/// Keys that all are hidden by the same number are all alike, whatever becomes of rows of minus infinity.
bool hides_by_finite_numbers(const WrittenAttention& found) {
  if (found.unseen != Unseen::zero) return !found.masks.empty();
  return std::any_of(found.masks.begin(), found.masks.end(), [&](const WrittenMask& m) {
    return m.value != found.flag && (m.kind == WrittenMask::Kind::added || std::isfinite(m.lowest));
  });
}

/// Scores that a finite number stands for get no gradient, those that something is added to do: where all keys are
/// hidden, one mask for both cannot tell them apart.
bool mixes_gradients(const WrittenAttention& found) {
  using Kind = WrittenMask::Kind;
  auto is_added = [](const WrittenMask& m) { return m.kind == Kind::added; };
  auto replaces = [](const WrittenMask& m) { return m.kind != Kind::added && std::isfinite(m.lowest); };
  return std::any_of(found.masks.begin(), found.masks.end(), is_added) &&
         std::any_of(found.masks.begin(), found.masks.end(), replaces);
}

void take_mask(AttentionSite& site, Value* mask) {
  if (mask != nullptr)
    site.masks.push_back({mask, is_float(mask->type.dtype) ? WrittenMask::Kind::added : WrittenMask::Kind::seen, 0});
  site.mask = mask;
  site.unseen_sees_all = has_float(site.masks);
}

void take_dropout(AttentionSite& site, const Node& dropout) {
  site.ratio = dropout.input(1);
  site.training = dropout.input(2);
  site.attributes.emplace_back("stream", dropout::stream_name(dropout));
  if (dropout.has_attribute("seed")) site.attributes.emplace_back("seed", dropout.attr_int("seed"));
}

std::optional<AttentionSite> written(Node& node) {
  std::optional<WrittenAttention> found = match_attention(node);
  if (!found || mixes_gradients(*found)) return std::nullopt;
  AttentionSite site;
  site.result = &node;
  site.nodes = found->nodes;
  const auto scale = static_cast<float>(found->scale);
  if (found->q->type.dtype != DType::float32 && static_cast<double>(scale) != found->scale) return std::nullopt;
  site.q = found->q, site.k = found->keys, site.v = found->v, site.masks = found->masks;
  const std::size_t rank = shape_of(site.q)->size();
  site.q_axes = site.v_axes = {0, rank - 2};
  site.k_axes = {0, rank - 1};
  const char* unseen = found->unseen == Unseen::zero ? "zero" : found->unseen == Unseen::nan ? "nan" : "all";
  site.attributes = {{"scale", scale}, {"unseen", std::string(unseen)}};
  site.unseen_sees_all = hides_by_finite_numbers(*found);
  if (found->dropout != nullptr) take_dropout(site, *found->dropout);
  // Heads that are part of the batch have masks that are, too.
  for (const WrittenMask& mask : site.masks) {
    const Shape* shape = shape_of(mask.value);
    if (shape == nullptr || shape->empty() || shape->back() != site.keys()) return std::nullopt;
    if (rank == 3 && shape->size() > 2 && !shape->front().is(1)) return std::nullopt;
  }
  site.written = std::move(found);
  return site;
}

bool has_only_first_output(const Node& node) {
  return std::none_of(node.outputs.begin() + 1, node.outputs.end(), [](const Value* v) { return v != nullptr; });
}

std::optional<AttentionSite> operation(Node& node) {
  const bool drops = node.op == "FusedAttention" && node.domain == "backpass";
  if (!drops && (node.op != "Attention" || !node.domain.empty())) return std::nullopt;
  const Shape *q = shape_of(node.input(kQ)), *k = shape_of(node.input(kK)), *mask = shape_of(node.input(kMask));
  if (q == nullptr || k == nullptr || shape_of(node.input(kV)) == nullptr || q->size() != k->size())
    return std::nullopt;
  if (node.input(kPastKey) != nullptr || node.input(kLengths) != nullptr || !has_only_first_output(node))
    return std::nullopt;
  if (node.has_attribute("lowest")) return std::nullopt;  // RaggedAttention's masks hide, or are numbers
  AttentionSite site;
  site.result = &node;
  site.nodes = {&node};
  site.q = node.input(kQ), site.k = node.input(kK), site.v = node.input(kV);
  take_mask(site, node.input(kMask));
  site.ratio = node.input(kRatio), site.training = node.input(kTraining);
  site.q_axes = site.k_axes = site.v_axes = {0, q->size() == 4 ? std::size_t{2} : std::size_t{1}};
  if (mask != nullptr && (mask->empty() || mask->back() != site.keys())) return std::nullopt;
  for (const auto& [key, value] : node.attributes) {
    const bool is_kept = key == "scale" || key == "softcap" || key == "is_causal" || key == "left_window_size" ||
                         key == "right_window_size" || key == "stream" || key == "seed";
    if (is_kept) site.attributes.emplace_back(key, value);
  }
  const bool is_nan = node.attr_int("unseen_is_nan", 0) != 0;
  site.attributes.emplace_back("unseen", std::string(is_nan ? "nan" : "zero"));
  if (drops && !node.has_attribute("stream")) site.attributes.emplace_back("stream", dropout::stream_name(node));
  site.is_causal = node.attr_int("is_causal", 0) != 0;
  if (q->size() == 3) site.heads = node.attr_int("q_num_heads", 0), site.kv_heads = node.attr_int("kv_num_heads", 0);
  return site;
}

Shape known_extents(const Value* v) {
  if (v != nullptr && v->ints) return *v->ints;
  if (v == nullptr || !v->constant || v->constant->dtype() != DType::int64) return {};
  const auto* numbers = v->constant->as<std::int64_t>();
  return {numbers, numbers + v->constant->size()};
}

std::optional<AttentionSite> ragged(Node& node) {
  if (node.op != "RaggedAttention" || node.domain != "backpass" || node.input(4) != nullptr) return std::nullopt;
  for (std::size_t i : {kQ, kK, kV}) {
    if (shape_of(node.input(i)) == nullptr) return std::nullopt;
  }
  AttentionSite site;
  site.result = &node;
  site.nodes = {&node};
  site.is_ragged = true;
  site.q = node.input(0), site.k = node.input(1), site.v = node.input(2);
  take_mask(site, node.input(6));
  site.extents = known_extents(node.input(5));
  if (site.extents.size() != 3) return std::nullopt;
  site.unseen_sees_all = site.unseen_sees_all || node.attr_string("unseen", "zero") == "all";
  site.is_causal = node.attr_int("is_causal", 0) != 0;
  return site;
}

Dim known_heads(const RowLayout& result) {
  const LayoutAxis& axis = result.axes[0];
  return !axis.empty() && !axis.back().is_row() ? axis.back().extent : Dim(1);
}

bool has_elements(const AttentionSite& site) {
  for (const Value* v : {site.q, site.k, site.v}) {
    if (std::any_of(v->type.shape->begin(), v->type.shape->end(), [](const Dim& d) { return d.is(0); })) return false;
  }
  return true;
}

}  // namespace

Dim AttentionSite::batch() const { return is_ragged ? extents[0] : (*q->type.shape)[q_axes.batch]; }
Dim AttentionSite::queries() const { return is_ragged ? extents[1] : (*q->type.shape)[q_axes.length]; }
Dim AttentionSite::keys() const { return is_ragged ? extents[2] : (*k->type.shape)[k_axes.length]; }
bool AttentionSite::may_hold_heads_in_batch() const { return !is_ragged && heads == 0 && q->type.shape->size() == 3; }

std::vector<AttentionSite> attention_sites(Graph& graph) {
  std::vector<AttentionSite> sites;
  for (Node* node : graph.nodes()) {
    std::optional<AttentionSite> site = written(*node);
    if (!site) site = operation(*node);
    if (!site) site = ragged(*node);
    if (site && has_elements(*site) && is_closed(graph, *site) && !has_learned_mask(graph, site->masks))
      sites.push_back(std::move(*site));
  }
  return sites;
}

Value* mask_of(Graph& graph, AttentionSite& site) {
  if (site.mask == nullptr && !site.masks.empty()) {
    Builder b(graph, site.result, site.result->name + "_mask");
    site.mask = joined_mask(b, *site.written);
  }
  return site.mask;
}

RowLayout sequence_layout(const Shape& shape, const AttentionAxes& axes, const Dim& heads_in_batch) {
  RowLayout layout;
  for (const Dim& extent : shape) layout.axes.push_back(feature_axis(extent));
  const Dim batch = heads_in_batch.is(1) ? shape[axes.batch] : floor_div(shape[axes.batch], heads_in_batch);
  const Dim& length = shape[axes.length];
  layout.axes[axes.length] = length.is(1) ? LayoutAxis() : LayoutAxis{{length, Dim(1)}};
  layout.axes[axes.batch] = batch.is(1) ? LayoutAxis() : LayoutAxis{{batch, length}};
  if (!heads_in_batch.is(1)) layout.axes[axes.batch].push_back({heads_in_batch, std::nullopt});
  return layout;
}

std::optional<AttentionLayouts> attention_layouts(const AttentionSite& site, const RowLayout& result) {
  const Shape &q = *site.q->type.shape, &k = *site.k->type.shape, &v = *site.v->type.shape;
  const Dim heads = site.may_hold_heads_in_batch() ? known_heads(result) : Dim(1);
  AttentionLayouts found{sequence_layout(q, site.q_axes, heads), sequence_layout(k, site.k_axes, heads),
                         sequence_layout(v, site.v_axes, heads)};
  RowLayout expected = found.q;
  expected.axes.back() = feature_axis(site.result->output(0)->type.shape->back());
  return result == expected ? std::optional(found) : std::nullopt;
}

}  // namespace backpass
