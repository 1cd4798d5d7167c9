#include <algorithm>
#include <numeric>

#include "graph/builder.hpp"
#include "ops/random/dropout.hpp"
#include "passes/list.hpp"
#include "passes/match_attention.hpp"

namespace backpass {
namespace {

using Perm = std::vector<std::int64_t>;

const Perm kMoved{0, 2, 1, 3};  ///< [batch, length, heads, size] as [batch, heads, length, size], and back

Perm identity(std::size_t rank) {
  Perm perm(rank);
  std::iota(perm.begin(), perm.end(), 0);
  return perm;
}

bool is_transposition(const Node* node) {
  return node != nullptr && node->domain.empty() && node->op == "Transpose" && node->has_attribute("perm");
}

/// perm applied after `first`.
Perm compose(const Perm& first, const Perm& perm) {
  Perm result;
  for (std::int64_t axis : perm) result.push_back(first[static_cast<std::size_t>(axis)]);
  return result;
}

/// A value with its axes in another order. What is asked for as a transposition of a transposition is one.
struct Turned {
  Value* source;
  Perm perm;

  static Turned of(Value* v) {
    Turned found{v, identity(v->type.shape->size())};
    for (const Node* node = v->producer; is_transposition(node); node = found.source->producer) {
      found = {node->input(0), compose(node->attr_ints("perm"), found.perm)};
    }
    return found;
  }
  bool is_plain() const { return std::is_sorted(perm.begin(), perm.end()); }
  Turned then(const Perm& next) const { return {source, compose(perm, next)}; }
  Turned with_last_swapped() const {
    Perm swap = identity(perm.size());
    std::swap(swap[swap.size() - 2], swap[swap.size() - 1]);
    return then(swap);
  }
  Value* made(Builder& b) const { return is_plain() ? source : b.op("Transpose", {source}, {{"perm", perm}}); }

  /// `node` gives this instead of what it gave.
  void replace(Graph& graph, Node& node) const {
    node.attributes.clear();
    graph.rewrite(node, "", is_plain() ? "Identity" : "Transpose", {source});
    if (!is_plain()) node.attributes["perm"] = perm;
  }

  /// The same for who transposes what the node gave.
  void replace_with_readers(Graph& graph, Node& node) const {
    const std::vector<Node*> readers = node.output(0)->readers;
    for (Node* reader : readers) {
      if (is_transposition(reader)) then(reader->attr_ints("perm")).replace(graph, *reader);
    }
    replace(graph, node);
  }
};

/// Some nodes of a graph become one FusedAttention, and with their gradient one FusedAttentionGrad.
class Fusion {
 public:
  Fusion(Graph& graph, const WrittenAttention& found) : graph_(graph), found_(found) {}

  void run(const WrittenAttentionGradient* gradient) {
    Builder b(graph_, found_.result, found_.result->name);
    operands_ = {Turned::of(found_.q), Turned::of(found_.keys).with_last_swapped(), Turned::of(found_.v)};
    set_attributes(b);
    if (!found_.masks.empty()) take_mask(b, found_.masks.front());
    choose_layout(b);
    Value* q = packed(b, operands_[0]);
    Value* k = packed(b, operands_[1]);
    Value* v = packed(b, operands_[2]);
    Value* ratio = found_.dropout == nullptr ? nullptr : found_.dropout->input(1);
    Value* training = found_.dropout == nullptr ? nullptr : found_.dropout->input(2);
    Value* y =
        b.op("FusedAttention", {q, k, v, mask_, nullptr, nullptr, nullptr, ratio, training}, attributes_, "backpass");
    if (gradient != nullptr) {
      Builder g(graph_, first_of(gradient->nodes), found_.result->name + "_Grad");
      Value* dy = packed(g, Turned::of(gradient->dy));
      std::vector<Value*> d =
          g.ops("FusedAttentionGrad", {dy, q, k, v, mask_, nullptr, ratio, training}, 3, attributes_, "backpass");
      if (factor_ != nullptr) d[0] = g.op("Mul", {d[0], factor_});
      unpack(g, d[0], gradient->dq, found_.q, false);
      unpack(g, d[1], gradient->dkeys, found_.keys, true);
      unpack(g, d[2], gradient->dv, found_.v, false);
    }
    unpack(b, y, found_.result->output(0), found_.v, false);
  }

 private:
  void set_attributes(Builder& b) {
    const auto scale = static_cast<float>(found_.scale);
    const bool is_exact = found_.q->type.dtype == DType::float32 || static_cast<double>(scale) == found_.scale;
    if (!is_exact) {
      factor_ = b.scalar(found_.scale, found_.q);
      operands_[0] = Turned::of(b.op("Mul", {found_.q, factor_}));
    }
    attributes_ = {{"scale", is_exact ? scale : 1.0F}};
    if (found_.dropout != nullptr) attributes_.emplace_back("stream", dropout::stream_name(*found_.dropout));
    if (found_.dropout != nullptr && found_.dropout->has_attribute("seed"))
      attributes_.emplace_back("seed", found_.dropout->attr_int("seed"));
    if (found_.unseen == Unseen::nan && !found_.masks.empty())
      attributes_.emplace_back("unseen_is_nan", std::int64_t{1});
  }

  /// Booleans are a quarter of the numbers that are made of them.
  void take_mask(Builder& b, const WrittenMask& mask) {
    mask_ = mask.value;
    const std::optional<WrittenMask> boolean = boolean_mask(mask);
    if (!boolean || static_cast<double>(static_cast<float>(boolean->lowest)) != boolean->lowest) return;
    const bool is_hidden = boolean->kind == WrittenMask::Kind::hidden;
    mask_ = is_hidden ? b.op("Not", {boolean->value}) : boolean->value;
    attributes_.emplace_back("lowest", static_cast<float>(boolean->lowest));
  }

  /// Three axes are a batch of single heads; heads behind lengths stay there.
  void choose_layout(Builder& b) {
    const Shape& v = *found_.v->type.shape;
    const Dim& size = found_.q->type.shape->back();
    if (v.size() == 3) {
      set_heads(1);
      if (mask_ != nullptr && mask_->type.shape->size() == 3) mask_ = b.op("Unsqueeze", {mask_, b.ints({1})});
      return;
    }
    is_moved_ = v[1].is_known() && v[3].is_known() && size.is_known() &&
                std::all_of(operands_.begin(), operands_.end(), [](const Turned& t) { return t.perm == kMoved; });
    if (is_moved_) set_heads(v[1].value());
  }

  void set_heads(std::int64_t heads) {
    heads_ = heads;
    attributes_.emplace_back("q_num_heads", heads);
    attributes_.emplace_back("kv_num_heads", heads);
  }

  /// As the operator reads it.
  Value* packed(Builder& b, const Turned& operand) const {
    if (!is_moved_) return operand.made(b);
    Value* apart = operand.then(kMoved).made(b);
    return b.op("Reshape", {apart, b.ints({0, 0, heads_ * apart->type.shape->at(3).value()})});
  }

  /// `old` is what the operator gives as `made` now. `like` has as many elements per head.
  void unpack(Builder& b, Value* made, Value* old, const Value* like, bool is_swapped) const {
    if (old == nullptr) return;
    Turned result{made, identity(old->type.shape->size())};
    if (is_moved_) {
      const std::int64_t size = like->type.shape->at(is_swapped ? 2 : 3).value();
      result = {b.op("Reshape", {made, b.ints({0, 0, heads_, size})}), kMoved};
    }
    if (is_swapped) result = result.with_last_swapped();
    result.replace_with_readers(graph_, *old->producer);
  }

  const Node* first_of(const NodeSet& nodes) const {
    const auto& order = graph_.nodes();
    return *std::find_if(order.begin(), order.end(), [&](const Node* node) { return nodes.count(node) != 0; });
  }

  Graph& graph_;
  const WrittenAttention& found_;
  std::vector<Turned> operands_;
  Value* mask_ = nullptr;
  Value* factor_ = nullptr;  ///< of the queries, where no attribute holds it exactly
  AttributeList attributes_;
  std::int64_t heads_ = 0;
  bool is_moved_ = false;
};

/// Scores of one head that no second-level cache holds: written out, each step over them goes to memory and back.
bool has_many_scores(const WrittenAttention& found) {
  constexpr std::int64_t kMany = 512 * 512;
  const Shape& scores = *found.scores->output(0)->type.shape;
  const Dim& queries = scores[scores.size() - 2];
  return queries.is_known() && scores.back().is_known() && queries.value() * scores.back().value() >= kMany;
}

/// What FusedAttention computes. Without dropout, few scores are as fast written out.
bool is_fusable(const WrittenAttention& found) {
  const bool hides_nan =
      found.flag != nullptr && found.flag->producer != nullptr && found.flag->producer->op == "IsNaN";
  if (found.dropout == nullptr && !has_many_scores(found)) return false;
  if (found.masks.size() > 1 || hides_nan) return false;
  if (found.masks.empty()) return true;
  const WrittenMask& mask = found.masks.front();
  return mask.kind == WrittenMask::Kind::added || (mask.kind == WrittenMask::Kind::seen && mask.value == found.flag);
}

/// Nobody else reads what lies inside.
bool is_closed(const Graph& graph, const NodeSet& nodes, const std::vector<const Value*>& results) {
  auto is_inside = [&](const Node* node) { return nodes.count(node) != 0; };
  return std::all_of(nodes.begin(), nodes.end(), [&](const Node* node) {
    return std::all_of(node->outputs.begin(), node->outputs.end(), [&](const Value* v) {
      if (v == nullptr || std::find(results.begin(), results.end(), v) != results.end()) return true;
      return !graph.is_output(v) && std::all_of(v->readers.begin(), v->readers.end(), is_inside);
    });
  });
}

bool is_closed(const Graph& graph, const WrittenAttention& found, const WrittenAttentionGradient* gradient) {
  NodeSet nodes = found.nodes;
  std::vector<const Value*> results{found.result->output(0)};
  if (gradient != nullptr) {
    nodes.insert(gradient->nodes.begin(), gradient->nodes.end());
    results.insert(results.end(), {gradient->dq, gradient->dkeys, gradient->dv});
  }
  return is_closed(graph, nodes, results);
}

Report report_of(const Node& node, const WrittenAttention& found) {
  std::vector<Value*> inner{found.scores->output(0), found.softmax->output(0)};
  std::string what = concat("joined ", node.label(), " with ", found.scores->label());
  std::string why = "scores of all queries are never needed together";
  if (found.dropout == nullptr) {
    what += concat(" and ", found.softmax->label());
  } else {
    inner.push_back(found.dropout->output(0));
    what += concat(", ", found.softmax->label(), " and ", found.dropout->label());
    why += ", and what was dropped is drawn again";
  }
  return {.node = node.label(), .what = what, .why = why, .bytes_saved = bytes_of(inner)};
}

}  // namespace

void fuse_attention(Graph& graph, Reports& reports) {
  if (graph.parent != nullptr) return;  // the gradient of a body is another body, which draws other numbers
  bool changed = false;
  const std::vector<Node*> nodes = graph.nodes();
  for (Node* node : nodes) {
    std::optional<WrittenAttention> found = match_attention(*node);
    if (!found || !is_fusable(*found)) continue;
    const std::optional<WrittenAttentionGradient> gradient =
        found->dropout == nullptr ? std::nullopt : match_attention_gradient(graph, *found);
    if (!is_closed(graph, *found, gradient ? &*gradient : nullptr) || has_learned_mask(graph, found->masks)) continue;
    if (!gradient) take_factors(*found);
    reports.push_back(report_of(*node, *found));
    Fusion(graph, *found).run(gradient ? &*gradient : nullptr);
    changed = true;
  }
  if (changed) graph.remove_dead_nodes();
}

}  // namespace backpass
