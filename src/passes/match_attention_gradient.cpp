#include <cmath>

#include "passes/match_attention.hpp"

namespace backpass {
namespace {

bool is_fused(const Node* node, std::string_view op) {
  return node != nullptr && node->domain == "com.microsoft" && node->op == op;
}

/// a b with one of them transposed, and nothing else.
bool is_product(const Node* node, const Value* a, const Value* b, bool left) {
  if (!is_fused(node, "FusedMatMul") || node->input(0) != a || node->input(1) != b) return false;
  const auto is_set = [&](const char* key, bool wanted) { return (node->attr_int(key, 0) != 0) == wanted; };
  return is_set("transA", left) && is_set("transB", !left) && is_set("transBatchA", false) &&
         is_set("transBatchB", false) && node->attr_float("alpha", 1) == 1;
}

bool is_zero(const Value* v) {
  if (!v->constant || v->constant->size() != 1) return false;
  const Tensor& t = *v->constant;
  return t.dtype() == DType::float32 ? *t.as<float>() == 0 : t.dtype() == DType::float64 && *t.as<double>() == 0;
}

class Matcher {
 public:
  Matcher(const Graph& graph, const WrittenAttention& attention) : graph_(graph), forward_(attention) {}

  std::optional<WrittenAttentionGradient> run() {
    const Value* mask = forward_.dropout->output(1);
    const Node* drop = mask == nullptr ? nullptr : take(graph_.only_reader(mask));
    if (!is_gradient_of_dropout(drop) || !take_product_of_values(drop->input(0)->producer)) return std::nullopt;
    const Value* at = before_scores(drop->output(0));
    if (at == nullptr || !take_products_of_scores(at)) return std::nullopt;
    return found_;
  }

 private:
  template <class N>
  N* take(N* node) {
    if (node != nullptr) found_.nodes.insert(node);
    return node;
  }

  bool is_gradient_of_dropout(const Node* node) const {
    const Node& dropout = *forward_.dropout;
    return is_fused(node, "DropoutGrad") && node->input(1) == dropout.output(1) && node->input(2) == dropout.input(1) &&
           node->input(3) == dropout.input(2);
  }

  bool take_product_of_values(const Node* node) {
    if (node == nullptr || !is_product(node, node->input(0), forward_.v, false)) return false;
    found_.dy = take(node)->input(0);
    for (const Node* reader : forward_.dropout->output(0)->readers) {
      if (!is_product(reader, forward_.dropout->output(0), found_.dy, true)) continue;
      found_.dv = take(reader)->output(0);
    }
    return true;
  }

  /// From the gradient of what was kept to that of the product of queries and keys; null where that goes another way.
  const Value* before_scores(const Value* at) {
    double scale = 1;
    int softmaxes = 0;
    int choices = 0;
    for (const Node* node = graph_.only_reader(at); node != nullptr; node = graph_.only_reader(at)) {
      const std::optional<Factor> factor = factor_of(node);
      if (is_gradient_of_softmax(*node, at)) {
        ++softmaxes;
      } else if (keeps_seen(*node, at)) {
        ++choices;
      } else if (factor && factor->of == at) {
        scale *= factor->number;
      } else {
        break;
      }
      at = take(node)->output(0);
    }
    const bool is_whole = softmaxes == 1 && choices == (forward_.flag == nullptr ? 0 : 2);
    return is_whole && is_same_scale(scale) ? at : nullptr;
  }

  /// Up to the order in which factors are multiplied, and how their type rounds them.
  bool is_same_scale(double scale) const {
    const double exact = forward_.q->type.dtype == DType::float64 ? 1e-14 : 1e-6;
    return std::abs(scale - forward_.scale) <= exact * std::abs(forward_.scale);
  }

  bool is_gradient_of_softmax(const Node& node, const Value* at) const {
    return is_fused(&node, "SoftmaxGrad_13") && node.input(0) == at && node.input(1) == forward_.softmax->output(0) &&
           node.attr_int("axis", -1) == forward_.softmax->attr_int("axis", -1);
  }

  bool keeps_seen(const Node& node, const Value* at) const {
    if (node.op != "Where" || !node.domain.empty() || forward_.flag == nullptr || node.input(0) != forward_.flag)
      return false;
    const bool chooses = !forward_.masks.empty() && forward_.flag == forward_.masks.front().value;
    return node.input(chooses ? 1 : 2) == at && is_zero(node.input(chooses ? 2 : 1));
  }

  bool take_products_of_scores(const Value* at) {
    if (graph_.is_output(at)) return false;
    for (const Node* reader : at->readers) {
      if (is_product(reader, at, forward_.keys, false)) {
        found_.dq = take(reader)->output(0);
      } else if (is_product(reader, forward_.q, at, true)) {
        found_.dkeys = take(reader)->output(0);
      } else {
        return false;
      }
    }
    return true;
  }

  const Graph& graph_;
  const WrittenAttention& forward_;
  WrittenAttentionGradient found_;
};

}  // namespace

std::optional<WrittenAttentionGradient> match_attention_gradient(const Graph& graph,
                                                                 const WrittenAttention& attention) {
  return Matcher(graph, attention).run();
}

}  // namespace backpass
