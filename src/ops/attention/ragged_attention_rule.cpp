#include "ops/attention/ragged_attention_rule.hpp"

#include <limits>
#include <set>
#include <utility>

#include "gradient/composite.hpp"
#include "gradient/product_rule.hpp"
#include "gradient/standardize_rule.hpp"
#include "ops/attention/attention_parts.hpp"
#include "ops/attention/ragged_layout.hpp"
#include "ops/random/dropout.hpp"

namespace backpass {
namespace {

/// Scores are [queries, heads, 1, keys of the whole].
class RaggedWriter {
 public:
  RaggedWriter(Builder& b, const Node& node) : g_(b, node, {}, kNothing), node_(node) {}

  std::vector<Value*> write() {
    read_places();
    const std::int64_t kv_heads = node_.attr_int("kv_num_heads");
    Value* q = g_.unsqueeze(
        attention_parts::split_last_axis(g_, widened(g_, g_.x(kRaggedQ)), node_.attr_int("q_num_heads")), {2});
    Value* k = attention_parts::repeat_heads(g_, by_query(widened(g_, g_.x(kRaggedK)), kv_heads), q);
    Value* v = attention_parts::repeat_heads(g_, by_query(widened(g_, g_.x(kRaggedV)), kv_heads), q);
    Value* product = g_.mul(g_.matmul(q, swap_last_axes(g_, k)), attention_parts::scale_for(g_, q));
    Value* y = g_.matmul(dropped(weights(product)), v);
    y = attention_parts::join_last_axes(g_, g_.squeeze(y, {2}));
    return {g_.cast_like(y, node_.input(kRaggedQ))};
  }

 private:
  Value* count(std::int64_t i) { return g_.slice(g_.x(kRaggedExtents), i, i + 1, 0); }
  Value* number(std::int64_t i) { return g_.squeeze(count(i), {0}); }
  Value* range(Value* end) { return g_.op("Range", {g_.b.integer(0), end, g_.b.integer(1)}); }

  Value* places(RaggedInput places, RaggedInput rows) {
    return node_.input(places) != nullptr ? node_.input(places) : range(g_.extent(g_.x(rows), 0));
  }

  void read_places() {
    batch_ = count(0), q_len_ = count(1), kv_len_ = count(2);
    q_places_ = places(kRaggedQPlaces, kRaggedQ);
    kv_places_ = g_.unsqueeze(places(kRaggedKvPlaces, kRaggedK), {1});
    item_ = g_.div(q_places_, q_len_);
    position_ = g_.unsqueeze(g_.sub(q_places_, g_.mul(item_, q_len_)), {1, 2, 3});
    Value* yes =
        g_.op("Expand", {g_.cast(g_.b.integer(1), DType::boolean), attention_parts::extent(g_, kv_places_, 0)});
    present_ = g_.gather(g_.reshape_to(spread(yes, {}), g_.concat({batch_, one(), one(), kv_len_}, 0)), item_, 0);
  }

  Value* one() { return g_.b.ints({1}); }

  /// Rows at their places of the whole, nothing between them.
  Value* spread(Value* rows, const std::vector<Value*>& width) {
    std::vector<Value*> shape{g_.mul(batch_, kv_len_)};
    shape.insert(shape.end(), width.begin(), width.end());
    Value* nothing = g_.cast(g_.b.integer(0), rows->type.dtype);
    return g_.op("ScatterND", {g_.op("Expand", {nothing, g_.concat(shape, 0)}), kv_places_, rows});
  }

  /// All keys (or values) of each query's batch item: [queries, heads, keys, size].
  Value* by_query(Value* rows, std::int64_t heads) {
    Value* width = attention_parts::extent(g_, rows, 1);
    Value* size = g_.op("Div", {width, g_.b.ints({heads})});
    Value* shape = g_.concat({batch_, kv_len_, g_.b.ints({heads}), size}, 0);
    return g_.transpose(g_.gather(g_.reshape_to(spread(rows, {width}), shape), item_, 0), {0, 2, 1, 3});
  }

  /// What belongs to the queries of a tensor that broadcasts to [batch, heads, queries, keys].
  Value* rows_of(Value* whole) {
    Value* heads = g_.b.ints({node_.attr_int("q_num_heads")});
    Value* all = g_.op("Expand", {whole, g_.concat({batch_, heads, q_len_, kv_len_}, 0)});
    Value* by_place = g_.concat({g_.mul(batch_, q_len_), heads, one(), kv_len_}, 0);
    return g_.gather(g_.reshape_to(g_.transpose(all, {0, 2, 1, 3}), by_place), q_places_, 0);
  }

  Value* weights(Value* scores) {
    if (const float cap = node_.attr_float("softcap", 0); cap > 0)
      scores = g_.mul(g_.op("Tanh", {g_.div(scores, g_.number(cap, scores))}), g_.number(cap, scores));
    Value* visible = limited(present_);
    if (Value* mask = node_.input(kRaggedMask); mask != nullptr) {
      const bool chooses = mask->type.dtype == DType::boolean;
      Value* rows = rows_of(mask);
      if (chooses) visible = g_.op("And", {visible, rows});
      if (!chooses) scores = g_.add(scores, g_.cast_like(rows, scores));
    }
    Value* none = g_.number(-std::numeric_limits<double>::infinity(), scores);
    return shares(g_.where(visible, scores, none), none);
  }

  /// Probabilities; those of a query that sees no key as the attribute says.
  Value* shares(Value* masked, Value* none) {
    const std::string unseen = node_.attr_string("unseen", "zero");
    if (unseen == "nan") return g_.op("Softmax", {masked}, {{"axis", std::int64_t{-1}}});
    Value* best = g_.op("ReduceMax", {masked, g_.b.ints({-1})}, {{"keepdims", std::int64_t{1}}});
    Value* sees = g_.greater(best, none);
    Value* p = g_.op("Softmax", {g_.where(sees, masked, g_.zero(masked))}, {{"axis", std::int64_t{-1}}});
    if (unseen == "zero") return g_.where(sees, p, g_.zero(p));
    Value* there = g_.cast_like(present_, p);
    Value* total = g_.op("Max", {g_.sum(there, {-1}, true), g_.one(p)});
    return g_.where(sees, p, g_.div(there, total));
  }

  Value* limited(Value* visible) {
    const std::int64_t left = node_.attr_int("left_window_size", -1);
    const std::int64_t right = node_.attr_int("right_window_size", -1);
    Value* ahead = g_.sub(range(number(2)), position_);
    auto allow = [&](const char* compare, std::int64_t limit) {
      visible = g_.op("And", {visible, g_.op(compare, {ahead, g_.b.integer(limit)})});
    };
    if (node_.attr_int("is_causal", 0) != 0) allow("LessOrEqual", 0);
    if (right >= 0) allow("LessOrEqual", right);
    if (left >= 0) allow("GreaterOrEqual", -left);
    return visible;
  }

  /// As a Dropout of the same name drops of all probabilities.
  Value* dropped(Value* p) {
    if (node_.input(kRaggedTraining) == nullptr) return p;
    AttributeList attributes;
    if (node_.has_attribute("seed")) attributes.emplace_back("seed", node_.attr_int("seed"));
    Value* heads = g_.b.ints({node_.attr_int("q_num_heads")});
    Value* ones = g_.op("Expand", {g_.one(p), g_.concat({batch_, heads, q_len_, kv_len_}, 0)});
    Value* kept = g_.op("Dropout", {ones, node_.input(kRaggedRatio), node_.input(kRaggedTraining)}, attributes);
    kept->producer->name = node_.attr_string("stream", dropout::stream_name(node_));
    return g_.mul(p, rows_of(kept));
  }

  static const std::set<const Value*> kNothing;
  GradientContext g_;  // for its vocabulary
  const Node& node_;
  Value *batch_ = nullptr, *q_len_ = nullptr, *kv_len_ = nullptr;     ///< one element each
  Value *q_places_ = nullptr, *kv_places_ = nullptr;                  ///< [queries], [keys, 1]
  Value *item_ = nullptr, *position_ = nullptr, *present_ = nullptr;  ///< of queries; which keys of each are there
};

const std::set<const Value*> RaggedWriter::kNothing;

}  // namespace

void ragged_attention_gradient(GradientContext& g) {
  composite_gradient(g, [](Builder& b, const Node& node) { return RaggedWriter(b, node).write(); });
}

void ragged_attention_fused_gradient(GradientContext& g) {
  if (g.wants(kRaggedRatio)) return ragged_attention_gradient(g);
  std::vector<Value*> inputs{g.dy()};
  inputs.insert(inputs.end(), g.node.inputs.begin(), g.node.inputs.end());
  AttributeList attributes(g.node.attributes.begin(), g.node.attributes.end());
  if (g.has_input(kRaggedTraining) && !g.node.has_attribute("stream"))
    attributes.emplace_back("stream", dropout::stream_name(g.node));
  const std::size_t outputs = g.wants(kRaggedMask) ? 4 : 3;
  const std::vector<Value*> d = g.b.ops("RaggedAttentionGrad", std::move(inputs), outputs, attributes, "backpass");
  for (std::size_t i : {kRaggedQ, kRaggedK, kRaggedV}) g.set(i, d[i]);
  if (g.wants(kRaggedMask)) g.set(kRaggedMask, d.back());
}

}  // namespace backpass
