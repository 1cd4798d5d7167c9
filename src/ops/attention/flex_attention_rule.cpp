#include "ops/attention/flex_attention_rule.hpp"

#include "gradient/product_rule.hpp"
#include "gradient/reverse.hpp"
#include "graph/clone.hpp"
#include "ops/attention/attention_parts.hpp"

namespace backpass {
namespace {

class FlexAttentionRule {
 public:
  explicit FlexAttentionRule(GradientContext& g) : g_(g) {
    const DType input = g.x(0)->type.dtype;
    const DType usual = input == DType::float64 ? DType::float64 : DType::float32;
    precision_ = static_cast<DType>(g.node.attr_int("softmax_precision", static_cast<std::int64_t>(usual)));
    inner_ = precision_ == DType::float64 ? DType::float64 : usual;
  }

  void run() {
    Value* q = g_.cast(stand_in(g_.x(0)), inner_);
    Value* k = attention_parts::repeat_heads(g_, g_.cast(stand_in(g_.x(1)), inner_), q);
    Value* v = attention_parts::repeat_heads(g_, g_.cast(stand_in(g_.x(2)), inner_), q);
    Value* scores = g_.mul(g_.matmul(q, swap_last_axes(g_, k)), attention_parts::scale_for(g_, q));
    scores = modified("score_mod", scores);
    Value* weights = modified("prob_mod", g_.op("Softmax", {scores}, {{"axis", std::int64_t{-1}}}));
    std::vector<Value*> outputs{g_.cast_like(g_.matmul(weights, v), g_.x(2))};
    std::vector<Value*> seeds{g_.op("Identity", {g_.dy()})};
    answer(add_gradients(g_.b.graph, outputs, seeds, copies_, {.standard_only = true}));
  }

 private:
  /// A copy of a value that takes part, so that gradients belong to this operator's use of it.
  Value* stand_in(Value* v) {
    if (!g_.wants(v)) return v;
    originals_.push_back(v);
    copies_.push_back(g_.op("Identity", {v}));
    return copies_.back();
  }

  Value* modified(std::string_view key, Value* values) {
    const Graph* body = g_.node.subgraph(key);
    if (body == nullptr) return values;
    ValueMap map{{body->inputs[0], g_.cast(values, precision_)}};
    for (const Capture& c : body->captures) map.emplace(c.inner, stand_in(c.outer));
    clone_into(g_.b.graph, *body, map);
    auto found = map.find(body->outputs[0]);
    ensure(found != map.end(), shown(g_.node), " gradient: the body has an output that nothing computes");
    return g_.cast(found->second, inner_);
  }

  void answer(const std::vector<Value*>& gradients) {
    std::size_t next = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      if (g_.wants(i)) g_.set(i, gradients[next++]);
    }
    for (; next < gradients.size(); ++next) g_.set_captured(originals_[next], gradients[next]);
  }

  GradientContext& g_;
  DType precision_, inner_;
  std::vector<Value*> originals_, copies_;
};

}  // namespace

void flex_attention_gradient(GradientContext& g) { FlexAttentionRule(g).run(); }

}  // namespace backpass
