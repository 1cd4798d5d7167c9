#include "passes/match_activation.hpp"

#include <limits>

namespace backpass {
namespace {

bool is_op(const Node* node, std::string_view domain, std::string_view op) {
  return node != nullptr && node->domain == domain && node->op == op;
}

ActivationSpec spec(FusedActivation kind, float p0 = 0, float p1 = 0) { return {kind, {p0, p1}}; }

/// Bounds are kept as float32: they must be exactly that.
std::optional<ActivationSpec> clip_of(const Node& node) {
  float bounds[2] = {-std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity()};
  for (std::size_t i = 1; i <= 2; ++i) {
    if (node.input(i) == nullptr) continue;
    std::optional<double> bound = scalar_constant(node.input(i));
    if (!bound || static_cast<double>(static_cast<float>(*bound)) != *bound) return std::nullopt;
    bounds[i - 1] = static_cast<float>(*bound);
  }
  return spec(FusedActivation::clip, bounds[0], bounds[1]);
}

std::optional<ActivationSpec> default_domain(const Node& node) {
  using F = FusedActivation;
  if (node.op == "Relu") return spec(F::relu);
  if (node.op == "LeakyRelu") return spec(F::leaky_relu, node.attr_float("alpha", 0.01F));
  if (node.op == "Clip") return clip_of(node);
  if (node.op == "HardSigmoid") {
    return spec(F::hard_sigmoid, node.attr_float("alpha", 0.2F), node.attr_float("beta", 0.5F));
  }
  if (node.op == "HardSwish") {
    if (node.input(0)->type.dtype == DType::float64) return std::nullopt;  // a sixth is kept as float32
    return spec(F::hard_swish, 1.0F / 6.0F, 0.5F);
  }
  if (node.op == "Sigmoid") return spec(F::sigmoid);
  if (node.op == "Tanh") return spec(F::tanh);
  if (node.op == "Swish") return spec(F::silu, node.attr_float("alpha", 1.0F));
  if (node.op == "Gelu") return spec(node.attr_string("approximate", "none") == "tanh" ? F::gelu_tanh : F::gelu);
  return std::nullopt;
}

std::optional<ActivationSpec> contrib_domain(const Node& node) {
  using F = FusedActivation;
  if (node.op == "Gelu") return spec(F::gelu);
  if (node.op == "FastGelu" && node.input(1) == nullptr) return spec(F::gelu_tanh);
  if (node.op == "QuickGelu") return spec(F::silu, node.attr_float("alpha", 1.702F));
  return std::nullopt;
}

/// Two readers of v, Sigmoid (or HardSigmoid) and a Mul of v with its result.
std::optional<MatchedActivation> match_gate(const Graph& graph, const Value* v) {
  const std::vector<Node*>& readers = v->readers;
  if (readers.size() != 2 || graph.use_count(v) != 2) return std::nullopt;
  for (int i = 0; i < 2; ++i) {
    Node* gate = readers[static_cast<std::size_t>(i)];
    Node* mul = readers[static_cast<std::size_t>(1 - i)];
    bool soft = is_op(gate, "", "Sigmoid");
    if (!(soft || is_op(gate, "", "HardSigmoid")) || !is_op(mul, "", "Mul")) continue;
    if (graph.only_reader(gate->output(0)) != mul) continue;
    if (soft) return MatchedActivation{spec(FusedActivation::silu, 1.0F), mul};
    return MatchedActivation{
        spec(FusedActivation::hard_swish, gate->attr_float("alpha", 0.2F), gate->attr_float("beta", 0.5F)), mul};
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> scalar_constant(const Value* v) {
  if (v == nullptr || !v->constant || v->constant->size() != 1) return std::nullopt;
  if (!is_float(v->constant->dtype()) && !is_integer(v->constant->dtype())) return std::nullopt;
  return v->constant->to_doubles().front();
}

std::optional<MatchedActivation> match_activation(const Graph& graph, const Value* v) {
  Node* reader = graph.only_reader(v);
  if (reader == nullptr) return match_gate(graph, v);
  if (reader->input(0) != v) return std::nullopt;
  std::optional<ActivationSpec> found;
  if (reader->domain.empty()) found = default_domain(*reader);
  if (reader->domain == "com.microsoft") found = contrib_domain(*reader);
  if (!found) return std::nullopt;
  return MatchedActivation{*found, reader};
}

}  // namespace backpass
