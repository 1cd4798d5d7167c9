#include "ops/recurrent/recurrent_cell.hpp"

#include <string>

namespace backpass {
namespace {

class CellWriter {
 public:
  CellWriter(Builder& b, const CellSpec& spec, const CellInputs& in) : b_(b), spec_(spec), in_(in) {}

  CellState write() {
    switch (spec_.kind) {
      case CellKind::lstm:
        return lstm();
      case CellKind::gru:
        return gru();
      default:
        return {gate(spec_.f, add(in_.projected, matmul(in_.h, in_.recurrence))), nullptr};
    }
  }

 private:
  Value* add(Value* x, Value* y) { return b_.op("Add", {x, y}); }
  Value* sub(Value* x, Value* y) { return b_.op("Sub", {x, y}); }
  Value* mul(Value* x, Value* y) { return b_.op("Mul", {x, y}); }
  Value* matmul(Value* x, Value* y) { return b_.op("MatMul", {x, y}); }
  Value* number(double value) { return b_.scalar(value, in_.h); }

  std::vector<Value*> split(Value* x) {
    const std::int64_t gates = gate_count(spec_.kind);
    return b_.ops("Split", {x}, static_cast<std::size_t>(gates), {{"axis", std::int64_t{-1}}, {"num_outputs", gates}});
  }

  Value* activate(const Activation& f, Value* x) {
    switch (f.kind) {
      case ActivationKind::sigmoid:
        return b_.op("Sigmoid", {x});
      case ActivationKind::tanh:
        return b_.op("Tanh", {x});
      case ActivationKind::relu:
        return b_.op("Relu", {x});
      case ActivationKind::affine:
        return add(mul(x, number(f.alpha)), number(f.beta));
      case ActivationKind::leaky_relu:
        return b_.op("LeakyRelu", {x}, {{"alpha", f.alpha}});
      case ActivationKind::thresholded_relu:
        return b_.op("ThresholdedRelu", {x}, {{"alpha", f.alpha}});
      case ActivationKind::scaled_tanh:
        return mul(b_.op("Tanh", {mul(x, number(f.beta))}), number(f.alpha));
      case ActivationKind::hard_sigmoid:
        return b_.op("HardSigmoid", {x}, {{"alpha", f.alpha}, {"beta", f.beta}});
      case ActivationKind::elu:
        return b_.op("Elu", {x}, {{"alpha", f.alpha}});
      case ActivationKind::softsign:
        return b_.op("Softsign", {x});
      case ActivationKind::softplus:
        return b_.op("Softplus", {x});
    }
    fail<InternalBug>("recurrent activation ", static_cast<int>(f.kind));
  }

  Value* gate(const Activation& f, Value* x) {
    if (spec_.clip != kNoClip<float>) x = b_.op("Clip", {x, number(-spec_.clip), number(spec_.clip)});
    return activate(f, x);
  }

  Value* peeped(Value* x, Value* weights, Value* c) { return weights == nullptr ? x : add(x, mul(weights, c)); }

  CellState lstm() {
    std::vector<Value*> a = split(add(in_.projected, matmul(in_.h, in_.recurrence)));  // i, o, f, c
    Value* input = gate(spec_.f, peeped(a[0], in_.peephole_i, in_.c));
    Value* forget = spec_.input_forget ? sub(number(1), input) : gate(spec_.f, peeped(a[2], in_.peephole_f, in_.c));
    Value* c = add(mul(forget, in_.c), mul(input, gate(spec_.g, a[3])));
    Value* output = gate(spec_.f, peeped(a[1], in_.peephole_o, c));
    return {mul(output, activate(spec_.h, c)), c};
  }

  CellState gru() {
    std::vector<Value*> x = split(in_.projected);  // z, r, h
    Value *update = nullptr, *candidate = nullptr;
    if (spec_.linear_before_reset) {
      Value* hidden = matmul(in_.h, in_.recurrence);
      if (in_.hidden_bias != nullptr) hidden = add(hidden, in_.hidden_bias);
      std::vector<Value*> r = split(hidden);
      update = gate(spec_.f, add(x[0], r[0]));
      candidate = gate(spec_.g, add(x[2], mul(gate(spec_.f, add(x[1], r[1])), r[2])));
    } else {
      std::vector<Value*> r = split(in_.recurrence);
      update = gate(spec_.f, add(x[0], matmul(in_.h, r[0])));
      Value* reset = gate(spec_.f, add(x[1], matmul(in_.h, r[1])));
      candidate = gate(spec_.g, add(x[2], matmul(mul(reset, in_.h), r[2])));
    }
    return {add(candidate, mul(update, sub(in_.h, candidate))), nullptr};
  }

  Builder& b_;
  const CellSpec& spec_;
  const CellInputs& in_;
};

}  // namespace

CellState write_cell(Builder& b, const CellSpec& spec, const CellInputs& in) { return CellWriter(b, spec, in).write(); }

}  // namespace backpass
