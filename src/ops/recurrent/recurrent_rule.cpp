#include "ops/recurrent/recurrent_rule.hpp"

#include <algorithm>
#include <utility>

#include "gradient/composite.hpp"
#include "gradient/forward_output.hpp"
#include "graph/infer.hpp"
#include "graph/op.hpp"
#include "ops/recurrent/recurrent.hpp"
#include "ops/recurrent/recurrent_scan.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kX, kW, kR, kB, kLengths, kInitialH, kInitialC, kP };

/// What LSTMGrad and GRUGrad know: sigmoid gates, tanh, steps first.
bool has_operator(const Node& node, CellKind kind) {
  if (kind == CellKind::rnn || node.attr_int("layout", 0) != 0) return false;
  const std::vector<CellSpec> specs = cell_specs(node, kind);
  return std::all_of(specs.begin(), specs.end(), [](const CellSpec& s) {
    return s.f.kind == ActivationKind::sigmoid && s.g.kind == ActivationKind::tanh &&
           s.h.kind == ActivationKind::tanh && s.clip == kNoClip<float> && !s.input_forget;
  });
}

/// [steps, directions, batch, columns]
Type sequence_type(GradientContext& g, CellKind kind, std::int64_t gates) {
  const Type& x = g.x(kX)->type;
  const Type& r = g.x(kR)->type;
  if (!x.shape || !r.shape) return Type::tensor(x.dtype);
  const auto directions = static_cast<std::int64_t>(cell_specs(g.node, kind).size());
  return Type::tensor(x.dtype, Shape{x.shape->at(0), directions, x.shape->at(1), r.shape->at(2) * Dim(gates)});
}

Value* gradient_or_none(GradientContext& g, std::size_t k) { return g.has_dy(k) ? g.dy(k) : nullptr; }

/// The node being differentiated as LSTMTraining or GRUTraining, which it may be already; returns what those keep for
/// the gradient.
std::vector<Value*> kept_values(GradientContext& g, CellKind kind) {
  Node& node = forward_node(g);
  if (node.domain.empty()) {
    node.op += "Training";
    node.domain = "com.microsoft";
    node.def = find_op(node.domain, node.op);
  }
  std::vector<Value*> kept{forward_output(g, 0, sequence_type(g, kind, 1))};
  if (kind == CellKind::lstm) kept.push_back(forward_output(g, 3, sequence_type(g, kind, 1)));
  kept.push_back(forward_output(g, kind == CellKind::lstm ? 4 : 2, sequence_type(g, kind, gate_count(kind))));
  return kept;
}

/// The node with only those outputs that answer an input that takes part.
void add_operator(GradientContext& g, const std::string& op, std::vector<Value*> reads,
                  const std::vector<std::size_t>& answered) {
  const std::string name = g.node.name + "_Grad/" + op;
  std::vector<Value*> writes;
  writes.reserve(answered.size());
  for (std::size_t i : answered) writes.push_back(g.wants(i) ? g.b.graph.add_value(name) : nullptr);
  Node* node = g.b.graph.add_node(op, std::move(reads), writes, name, "com.microsoft");
  node->attributes = g.node.attributes;
  infer_node(g.b.graph, *node);
  for (std::size_t k = 0; k < answered.size(); ++k) {
    if (writes[k] != nullptr) g.set(answered[k], writes[k]);
  }
}

template <CellKind kind>
std::vector<Value*> write(Builder& b, const Node& node) {
  return write_recurrent_scan(b, node, kind);
}

}  // namespace

template <CellKind kind>
void recurrent_gradient_rule(GradientContext& g) {
  composite_gradient(g, write<kind>);
}

template <CellKind kind>
void recurrent_fused_gradient_rule(GradientContext& g) {
  if (!has_operator(g.node, kind)) return recurrent_gradient_rule<kind>(g);
  const std::string op = kind == CellKind::lstm ? "LSTMGrad" : "GRUGrad";
  std::vector<std::size_t> answered{kX, kW, kR, kB, kInitialH};
  if (kind == CellKind::lstm) answered.insert(answered.end(), {kInitialC, kP});
  std::vector<Value*> reads{g.x(kX), g.x(kW), g.x(kR)};
  if (kind == CellKind::gru) reads.push_back(g.node.input(kB));
  reads.insert(reads.end(), {g.node.input(kLengths), g.node.input(kInitialH)});
  if (kind == CellKind::lstm) reads.push_back(g.node.input(kInitialC));
  std::vector<Value*> arriving;
  for (std::size_t k = 0; k < (kind == CellKind::lstm ? 3 : 2); ++k) arriving.push_back(gradient_or_none(g, k));
  const std::vector<Value*> kept = kept_values(g, kind);
  reads.insert(reads.end(), kept.begin(), kept.end());
  reads.insert(reads.end(), arriving.begin(), arriving.end());
  if (kind == CellKind::lstm) reads.push_back(g.node.input(kP));
  add_operator(g, op, std::move(reads), answered);
}

template void recurrent_gradient_rule<CellKind::lstm>(GradientContext&);
template void recurrent_gradient_rule<CellKind::gru>(GradientContext&);
template void recurrent_gradient_rule<CellKind::rnn>(GradientContext&);
template void recurrent_fused_gradient_rule<CellKind::lstm>(GradientContext&);
template void recurrent_fused_gradient_rule<CellKind::gru>(GradientContext&);

}  // namespace backpass
