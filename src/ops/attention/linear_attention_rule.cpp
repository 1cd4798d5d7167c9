#include "ops/attention/linear_attention_rule.hpp"

#include <set>
#include <string>
#include <utility>

#include "gradient/composite.hpp"
#include "gradient/scan_writer.hpp"
#include "gradient/standardize_rule.hpp"
#include "ops/attention/attention_parts.hpp"

namespace backpass {
namespace {

using attention_parts::extent;
using attention_parts::split_last_axis;

enum Input : std::size_t { kQuery, kKey, kValue, kPast, kDecay, kBeta };

class LinearAttentionWriter {
 public:
  LinearAttentionWriter(Builder& b, const Node& node) : g_(b, node, {}, kNothing), node_(node) {
    const std::string rule = node.attr_string("update_rule", "gated_delta");
    is_gated_ = rule == "gated" || rule == "gated_delta";
    is_delta_ = rule == "delta" || rule == "gated_delta";
    q_heads_ = node.attr_int("q_num_heads");
    kv_heads_ = node.attr_int("kv_num_heads");
  }

  std::vector<Value*> write() {
    // Tokens first, then the batch: [token, batch, key head, ...].
    Value* query = split_last_axis(g_, tokens(kQuery), q_heads_);
    query = split_heads(query);
    Value* key = split_last_axis(g_, tokens(kKey), kv_heads_);
    Value* value = split_last_axis(g_, tokens(kValue), kv_heads_);
    std::vector<Value*> sequences{query, key, value};
    if (is_gated_) sequences.push_back(split_last_axis(g_, tokens(kDecay), kv_heads_));
    if (is_delta_) sequences.push_back(tokens(kBeta));
    Value* initial = state(key, value);
    const std::string name = node_.name + "_Grad/tokens";
    ScanBody body(name);
    write_body(body, initial, sequences);
    std::vector<Value*> out = add_scan(g_.b, name, std::move(body), {initial}, sequences, false);
    Value* y = g_.mul(out[1], scale(query));  // [token, batch, key head, group, value size]
    y = attention_parts::join_last_axes(g_, attention_parts::join_last_axes(g_, g_.transpose(y, {1, 0, 2, 3, 4})));
    const Value* state_like = node_.input(kPast) != nullptr ? node_.input(kPast) : node_.input(kQuery);
    return {g_.cast_like(y, node_.input(kQuery)), g_.cast_like(out[0], state_like)};
  }

 private:
  Value* tokens(std::size_t input) { return g_.transpose(widened(g_, g_.x(input)), {1, 0, 2}); }

  /// Query heads as key heads and those that share one.
  Value* split_heads(Value* query) {
    Value* shape = g_.concat({extent(g_, query, 0), extent(g_, query, 1), g_.b.ints({kv_heads_, q_heads_ / kv_heads_}),
                              extent(g_, query, 3)},
                             0);
    return g_.reshape_to(query, shape);
  }

  /// [batch, key head, key size, value size]
  Value* state(Value* key, Value* value) {
    if (node_.input(kPast) != nullptr) return widened(g_, g_.x(kPast));
    Value* shape = g_.concat({extent(g_, key, 1), extent(g_, key, 2), extent(g_, key, 3), extent(g_, value, 3)}, 0);
    return g_.op("Expand", {g_.zero(key), shape});
  }

  Value* scale(Value* query) {
    const float given = node_.attr_float("scale", 0);
    if (given != 0) return g_.number(given, query);
    return g_.reciprocal(g_.sqrt(g_.cast_like(g_.extent(query, -1), query)));
  }

  void write_body(ScanBody& body, Value* initial, const std::vector<Value*>& sequences) {
    GradientContext in(body.b, node_, {}, kNothing);
    Value* memory = body.state("memory", initial);
    Value* query = body.step_of("query", sequences[0]);
    Value* key = body.step_of("key", sequences[1]);
    Value* update = in.unsqueeze(body.step_of("value", sequences[2]), {2});
    if (is_gated_) memory = in.mul(memory, in.unsqueeze(in.exp(body.step_of("decay", sequences[3])), {3}));
    if (is_delta_) {
      Value* beta = in.unsqueeze(body.step_of("beta", sequences.back()), {2, 3});
      update = in.mul(beta, in.sub(update, in.matmul(in.unsqueeze(key, {2}), memory)));
    }
    memory = in.add(memory, in.mul(in.unsqueeze(key, {3}), update));
    body.graph->outputs = {memory, in.matmul(query, memory)};
  }

  static const std::set<const Value*> kNothing;
  GradientContext g_;  // for its vocabulary
  const Node& node_;
  bool is_gated_ = false, is_delta_ = false;
  std::int64_t q_heads_ = 1, kv_heads_ = 1;
};

const std::set<const Value*> LinearAttentionWriter::kNothing;

}  // namespace

void linear_attention_gradient(GradientContext& g) {
  composite_gradient(g, [](Builder& b, const Node& node) { return LinearAttentionWriter(b, node).write(); });
}

}  // namespace backpass
