// LSTMTraining, GRUTraining (com.microsoft): the layers with what their gradients need; LSTMGrad, GRUGrad.
#include <string>
#include <utility>
#include <vector>

#include "graph/op.hpp"
#include "ops/flops.hpp"
#include "ops/recurrent/recurrent.hpp"
#include "ops/recurrent/recurrent_grad.hpp"
#include "ops/recurrent/recurrent_rule.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

constexpr RecurrentOutputs kLstmOutputs{.y = 0, .y_h = 1, .y_c = 2, .all_c = 3, .gates = 4};
constexpr RecurrentOutputs kGruOutputs{.y = 0, .y_h = 1, .y_c = -1, .all_c = -1, .gates = 2};

const Register lstm_training{
    {.name = "LSTMTraining",
     .domain = "com.microsoft",
     .since = 1,
     .doc = "LSTM that also gives all cell states and gates, for its gradient.",
     .inputs = {3, 8},
     .outputs = {0, 5},
     .types = types::floats,
     .infer = [](InferContext& c) { infer_recurrent(c, CellKind::lstm, kLstmOutputs); },
     .prepare = [](PrepareContext& c) { return prepare_recurrent(c, CellKind::lstm, kLstmOutputs); },
     .fused_gradient = recurrent_fused_gradient_rule<CellKind::lstm>,
     .half_through_float = true,
     .flops = flops::recurrent}};

const Register gru_training{
    {.name = "GRUTraining",
     .domain = "com.microsoft",
     .since = 1,
     .doc = "GRU that also gives all gates, for its gradient.",
     .inputs = {3, 6},
     .outputs = {0, 3},
     .types = types::floats,
     .infer = [](InferContext& c) { infer_recurrent(c, CellKind::gru, kGruOutputs); },
     .prepare = [](PrepareContext& c) { return prepare_recurrent(c, CellKind::gru, kGruOutputs); },
     .fused_gradient = recurrent_fused_gradient_rule<CellKind::gru>,
     .half_through_float = true,
     .flops = flops::recurrent}};

/// Where the inputs of a gradient are, by position; -1: not at all.
struct GradInputs {
  int bias, lengths, initial_h, initial_c, all_h, all_c, gates, grad_all_h, grad_h, grad_c, peepholes;
};
// ONNX Runtime's order; it knows no peepholes, which therefore come last.
constexpr GradInputs kLstmInputs{-1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
constexpr GradInputs kGruInputs{3, 4, 5, -1, 6, -1, 7, 8, 9, -1, -1};
enum Common : std::size_t { kX, kW, kR };

const GradInputs& inputs_of(CellKind kind) { return kind == CellKind::lstm ? kLstmInputs : kGruInputs; }

// The gradient formulas are those of sigmoid gates and tanh.
std::vector<CellSpec> usual_specs(const Node& node, CellKind kind) {
  std::vector<CellSpec> specs = cell_specs(node, kind);
  for (const CellSpec& s : specs) {
    const bool usual = s.f.kind == ActivationKind::sigmoid && s.g.kind == ActivationKind::tanh &&
                       s.h.kind == ActivationKind::tanh && s.clip == kNoClip<float> && !s.input_forget;
    if (!usual)
      fail<Unsupported>(node.label(),
                        " gradient of other activations than Sigmoid and Tanh, of clip or of input_forget");
  }
  if (node.attr_int("layout", 0) != 0) fail<Unsupported>(node.label(), " gradient with layout 1; use layout 0");
  return specs;
}

void infer_grad(InferContext& c, CellKind kind) {
  const GradInputs& at = inputs_of(kind);
  for (std::size_t i = 0; i < c.node.outputs.size(); ++i) c.set_dtype(i, c.dtype(kX));
  const auto directions = static_cast<std::int64_t>(usual_specs(c.node, kind).size());
  c.require(c.rank(kX) == 3 && c.rank(kW) == 3 && c.rank(kR) == 3, "ranks of X, W and R: expected 3");
  const Shape& x = c.shape(kX);
  const Dim hidden = c.shape(kR)[2];
  const Dim width = hidden * Dim(gate_count(kind));
  auto check = [&](int input, std::string_view name, const Shape& expected) {
    const auto i = static_cast<std::size_t>(input);
    if (input < 0 || !c.has_input(i) || !c.knows_shape(i)) return;
    c.require(input == at.lengths || c.dtype(i) == c.dtype(kX), "element type of ", name, ": got ", name_of(c.dtype(i)),
              ", expected ", name_of(c.dtype(kX)), " as X");
    c.require(c.rank(i) == expected.size(), "rank of ", name, ": got ", c.rank(i), ", expected ", expected.size());
    for (std::size_t k = 0; k < expected.size(); ++k) c.unify(c.shape(i)[k], expected[k], name);
  };
  const Shape state{directions, x[1], hidden};
  const Shape sequence{x[0], directions, x[1], hidden};
  const Shape w{directions, width, x[2]}, r{directions, width, hidden}, b{directions, width * Dim(2)};
  check(kW, "W", w), check(kR, "R", r), check(at.bias, "B", b), check(at.initial_h, "initial_h", state);
  check(at.lengths, "sequence_lens", {x[1]});
  check(at.initial_c, "initial_c", state), check(at.peepholes, "P", {directions, hidden * Dim(3)});
  check(at.all_h, "all hidden states", sequence), check(at.all_c, "all cell states", sequence);
  check(at.gates, "gates", {x[0], directions, x[1], width});
  check(at.grad_all_h, "gradient of all hidden states", sequence);
  check(at.grad_h, "gradient of the final hidden state", state),
      check(at.grad_c, "gradient of the final cell state", state);
  for (int needed : {at.all_h, at.gates, kind == CellKind::lstm ? at.all_c : at.gates})
    c.require(c.has_input(static_cast<std::size_t>(needed)), "input ", needed,
              ": missing, expected what the forward run kept");
  if (const auto i = static_cast<std::size_t>(at.lengths); c.has_input(i)) {
    c.require(c.dtype(i) == DType::int32, "element type of sequence_lens: got ", name_of(c.dtype(i)),
              ", expected int32");
  }
  std::vector<Shape> shapes{x, w, r, b, state};
  if (kind == CellKind::lstm) shapes.insert(shapes.end(), {state, {directions, hidden * Dim(3)}});
  for (std::size_t i = 0; i < c.node.outputs.size() && i < shapes.size(); ++i) c.set_shape(i, shapes[i]);
}

template <class T>
Kernel prepare_grad(PrepareContext& c, CellKind kind) {
  const Dims& x = c.in(kX).dims;
  const RecurrentLayout layout{x[0], x[1], x[2], c.in(kR).dims[2], c.in(kW).dims[0], false};
  const std::vector<CellSpec> specs = usual_specs(c.node, kind);
  const GradInputs at = inputs_of(kind);
  const std::size_t offset = c.reserve(static_cast<std::size_t>(recurrent_grad_scratch(layout, kind)) * sizeof(T));
  const auto inputs = static_cast<int>(c.inputs.size());
  const std::size_t outputs = c.outputs.size();
  return [=, label = c.node.label()](const KernelArgs& args) {
    auto in = [&](int i) { return i >= 0 && i < inputs ? args.in<T>(static_cast<std::size_t>(i)) : nullptr; };
    auto out = [&](std::size_t i) { return i < outputs ? args.out<T>(i) : nullptr; };
    RecurrentGradTensors<T> t;
    t.x = in(kX), t.w = in(kW), t.r = in(kR), t.bias = in(at.bias), t.initial_h = in(at.initial_h);
    t.lengths = at.lengths < inputs ? args.in<std::int32_t>(static_cast<std::size_t>(at.lengths)) : nullptr;
    t.initial_c = in(at.initial_c), t.peepholes = in(at.peepholes), t.all_h = in(at.all_h), t.all_c = in(at.all_c);
    t.gates = in(at.gates), t.grad_all_h = in(at.grad_all_h), t.grad_h = in(at.grad_h), t.grad_c = in(at.grad_c);
    t.grad_x = out(0), t.grad_w = out(1), t.grad_r = out(2), t.grad_bias = out(3), t.grad_initial_h = out(4);
    if (kind == CellKind::lstm) t.grad_initial_c = out(5), t.grad_peepholes = out(6);
    for (std::int64_t b = 0; t.lengths != nullptr && b < layout.batch; ++b)
      if (t.lengths[b] < 0 || t.lengths[b] > layout.steps)
        fail(label, " sequence_lens[", b, "]: got ", t.lengths[b], ", expected 0 to ", layout.steps);
    recurrent_gradient<T>(layout, specs, t, reinterpret_cast<T*>(args.scratch + offset));
  };
}

Kernel prepare_any(PrepareContext& c, CellKind kind) {
  Kernel kernel;
  visit_real(c.in(kX).dtype, [&]<class T>() { kernel = prepare_grad<T>(c, kind); });
  return kernel;
}

const Register lstm_grad{{.name = "LSTMGrad",
                          .domain = "com.microsoft",
                          .since = 1,
                          .doc = "Gradient of LSTMTraining.",
                          .inputs = {3, 13},
                          .outputs = {0, 7},
                          .types = types::floats,
                          .infer = [](InferContext& c) { infer_grad(c, CellKind::lstm); },
                          .prepare = [](PrepareContext& c) { return prepare_any(c, CellKind::lstm); },
                          .half_through_float = true,
                          .flops = [](const Node& node) { return Dim(2) * flops::recurrent(node); }}};

const Register gru_grad{{.name = "GRUGrad",
                         .domain = "com.microsoft",
                         .since = 1,
                         .doc = "Gradient of GRUTraining.",
                         .inputs = {3, 10},
                         .outputs = {0, 5},
                         .types = types::floats,
                         .infer = [](InferContext& c) { infer_grad(c, CellKind::gru); },
                         .prepare = [](PrepareContext& c) { return prepare_any(c, CellKind::gru); },
                         .half_through_float = true,
                         .flops = [](const Node& node) { return Dim(2) * flops::recurrent(node); }}};

}  // namespace
}  // namespace backpass
