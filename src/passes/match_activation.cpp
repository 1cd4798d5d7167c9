#include "passes/match_activation.hpp"

#include "passes/pattern.hpp"

namespace backpass {
namespace {

using pattern::is_op;

/// Two readers of v, Sigmoid (or HardSigmoid) and a Mul of v with its result.
std::optional<MatchedActivation> match_gate(const Graph& graph, const Value* v) {
  const std::vector<Node*>& readers = v->readers;
  if (readers.size() != 2 || graph.use_count(v) != 2) return std::nullopt;
  for (int i = 0; i < 2; ++i) {
    Node* gate = readers[static_cast<std::size_t>(i)];
    Node* mul = readers[static_cast<std::size_t>(1 - i)];
    bool soft = is_op(gate, "Sigmoid");
    if (!(soft || is_op(gate, "HardSigmoid")) || !is_op(mul, "Mul")) continue;
    if (graph.only_reader(gate->output(0)) != mul) continue;
    std::optional<UnaryTile> inner = unary_tile(*gate);
    if (!inner) continue;
    if (soft) return MatchedActivation{{find_tile_function("Swish"), {1.0}}, mul};
    return MatchedActivation{{find_tile_function("HardSwish"), inner->params}, mul};
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
  std::optional<UnaryTile> found = unary_tile(*reader);
  if (!found) return std::nullopt;
  return MatchedActivation{*found, reader};
}

}  // namespace backpass
