#include "ops/attention/attention_rule.hpp"

#include <limits>
#include <set>
#include <utility>

#include "gradient/composite.hpp"
#include "gradient/product_rule.hpp"
#include "gradient/standardize_rule.hpp"
#include "ops/attention/attention_parts.hpp"
#include "ops/random/dropout.hpp"

namespace backpass {
namespace {

using attention_parts::extent;

enum Input : std::size_t { kQ, kK, kV, kMask, kPastKey, kPastValue, kLengths, kRatio, kTraining };
enum Stage : std::int64_t { kProduct, kCapped, kMasked, kProbability };

class AttentionWriter {
 public:
  AttentionWriter(Builder& b, const Node& node) : g_(b, node, {}, kNothing), node_(node) {}

  std::vector<Value*> write() {
    const bool packed = g_.rank(g_.x(kQ)) == 3;
    q_ = heads(kQ, "q_num_heads");
    Value* k = with_past(heads(kK, "kv_num_heads"), kPastKey);
    Value* v = with_past(heads(kV, "kv_num_heads"), kPastValue);
    Value* keys = attention_parts::repeat_heads(g_, k, q_);
    Value* values = attention_parts::repeat_heads(g_, v, q_);
    Value* product = g_.mul(g_.matmul(q_, swap_last_axes(g_, keys)), attention_parts::scale_for(g_, q_));
    Value* y = g_.matmul(dropped(weights(product)), values);
    if (packed) y = attention_parts::join_last_axes(g_, g_.transpose(y, {0, 2, 1, 3}));
    const Value* q = node_.input(kQ);
    return {g_.cast_like(y, q), g_.cast_like(k, node_.input(kK)), g_.cast_like(v, node_.input(kV)),
            g_.cast_like(recorded_, q)};
  }

 private:
  Value* heads(std::size_t input, const char* attribute) {
    Value* v = widened(g_, g_.x(input));
    return g_.rank(v) == 4 ? v : attention_parts::to_heads(g_, v, node_.attr_int(attribute));
  }

  Value* with_past(Value* v, std::size_t past) {
    return node_.input(past) == nullptr ? v : g_.concat({widened(g_, g_.x(past)), v}, 2);
  }

  /// Scores to probabilities; keeps the stage that the fourth output shows.
  Value* weights(Value* scores) {
    const std::int64_t stage = node_.attr_int("qk_matmul_output_mode", 0);
    auto record = [&](std::int64_t at, Value* v) {
      if (at == stage) recorded_ = v;
      return v;
    };
    record(kProduct, scores);
    if (const float cap = node_.attr_float("softcap", 0); cap > 0) {
      scores = g_.mul(g_.op("Tanh", {g_.div(scores, g_.number(cap, scores))}), g_.number(cap, scores));
    }
    record(kCapped, scores);
    Value* masked = record(kMasked, mask(scores));
    if (masked == scores || node_.attr_int("unseen_is_nan", 0) != 0) return record(kProbability, softmax(masked));
    // A query that sees no key gives zeros, and nothing flows back from it.
    Value* lowest = g_.number(-std::numeric_limits<double>::infinity(), masked);
    Value* best = g_.op("ReduceMax", {masked, g_.b.ints({-1})}, {{"keepdims", std::int64_t{1}}});
    Value* sees = g_.greater(best, lowest);
    Value* probabilities = softmax(g_.where(sees, masked, g_.zero(masked)));
    return record(kProbability, g_.where(sees, probabilities, g_.zero(masked)));
  }

  /// By a Dropout of the same name, which draws the same numbers.
  Value* dropped(Value* probabilities) {
    if (node_.input(kTraining) == nullptr) return probabilities;
    AttributeList attributes;
    if (node_.has_attribute("seed")) attributes.emplace_back("seed", node_.attr_int("seed"));
    Value* result = g_.op("Dropout", {probabilities, node_.input(kRatio), node_.input(kTraining)}, attributes);
    result->producer->name = node_.attr_string("stream", dropout::stream_name(node_));
    return result;
  }

  Value* softmax(Value* a) { return g_.op("Softmax", {a}, {{"axis", std::int64_t{-1}}}); }

  Value* range(Value* scores, std::int64_t axis) {
    return g_.op("Range", {g_.b.integer(0), g_.extent(scores, axis), g_.b.integer(1)});
  }

  void allow(Value* condition) { visible_ = visible_ == nullptr ? condition : g_.op("And", {visible_, condition}); }

  /// The masked scores; the scores themselves when nothing hides any.
  Value* mask(Value* scores) {
    limit_by_position(scores);
    Value* added = nullptr;
    if (node_.input(kMask) != nullptr) added = apply_mask(scores);
    if (added != nullptr) scores = g_.add(scores, added);
    if (visible_ == nullptr) return scores;
    return g_.where(visible_, scores, g_.number(-std::numeric_limits<double>::infinity(), scores));
  }

  void limit_by_position(Value* scores) {
    const std::int64_t left = node_.attr_int("left_window_size", -1);
    const std::int64_t right = node_.attr_int("right_window_size", -1);
    const bool causal = node_.attr_int("is_causal", 0) != 0;
    Value* key = range(scores, 3);
    Value* lengths = node_.input(kLengths);
    if (lengths != nullptr) {
      lengths = g_.unsqueeze(lengths, {1, 2, 3});
      allow(g_.less(key, lengths));
    }
    if (left < 0 && right < 0 && !causal) return;
    Value* position = g_.unsqueeze(range(scores, 2), {1});
    if (lengths != nullptr) {
      position = g_.add(position, g_.sub(lengths, g_.extent(scores, 2)));
    } else if (node_.input(kPastKey) != nullptr) {
      position = g_.add(position, g_.extent(g_.x(kPastKey), 2));
    }
    Value* ahead = g_.sub(key, position);
    if (causal) allow(g_.op("LessOrEqual", {ahead, g_.b.integer(0)}));
    if (right >= 0) allow(g_.op("LessOrEqual", {ahead, g_.b.integer(right)}));
    if (left >= 0) allow(g_.op("GreaterOrEqual", {ahead, g_.b.integer(-left)}));
  }

  /// What attn_mask adds to the scores, null when it chooses. It may be shorter than the keys: the rest is hidden.
  Value* apply_mask(Value* scores) {
    Value* given = g_.x(kMask);
    const bool chooses = given->type.dtype == DType::boolean;
    const Dim& length = given->type.shape->back();
    if (length != scores->type.shape->back()) {
      Value* missing = g_.sub(extent(g_, scores, 3), extent(g_, given, -1));
      std::vector<std::int64_t> nothing(static_cast<std::size_t>(g_.rank(given)) - 1, 0);
      Value* none = g_.b.ints(std::vector<std::int64_t>(nothing.size() + 1, 0));
      Value* pads = nothing.empty() ? g_.concat({none, missing}, 0) : g_.concat({none, g_.b.ints(nothing), missing}, 0);
      allow(g_.less(range(scores, 3), g_.extent(given, -1)));
      given = g_.op("Pad", {given, pads});
    }
    if (!chooses) return g_.cast_like(given, scores);
    if (node_.has_attribute("lowest"))
      return g_.where(given, g_.zero(scores), g_.number(node_.attr_float("lowest", 0), scores));
    allow(given);
    return nullptr;
  }

  static const std::set<const Value*> kNothing;
  GradientContext g_;  // for its vocabulary
  const Node& node_;
  Value* q_ = nullptr;
  Value* visible_ = nullptr;
  Value* recorded_ = nullptr;
};

const std::set<const Value*> AttentionWriter::kNothing;

}  // namespace

void attention_gradient(GradientContext& g) {
  composite_gradient(g, [](Builder& b, const Node& node) { return AttentionWriter(b, node).write(); });
}

void attention_fused_gradient(GradientContext& g) {
  const bool only_y = g.has_dy(0) && !g.has_dy(1) && !g.has_dy(2) && !g.has_dy(3);
  if (!only_y || g.has_input(kPastKey) || g.wants(kMask) || g.wants(kRatio)) return attention_gradient(g);
  AttributeList attributes(g.node.attributes.begin(), g.node.attributes.end());
  std::erase_if(attributes, [](const auto& entry) { return entry.first == "qk_matmul_output_mode"; });
  std::vector<Value*> inputs{g.dy(0), g.x(kQ), g.x(kK), g.x(kV), g.node.input(kMask), g.node.input(kLengths)};
  const bool draws = g.has_input(kTraining);
  if (draws) inputs.insert(inputs.end(), {g.node.input(kRatio), g.node.input(kTraining)});
  if (draws && !g.node.has_attribute("stream")) attributes.emplace_back("stream", dropout::stream_name(g.node));
  std::vector<Value*> d =
      g.b.ops(draws ? "FusedAttentionGrad" : "AttentionGrad", std::move(inputs), 3, attributes, "backpass");
  for (std::size_t i = 0; i < d.size(); ++i) g.set(i, d[i]);
}

}  // namespace backpass
