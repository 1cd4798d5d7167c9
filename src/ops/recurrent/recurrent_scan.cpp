#include "ops/recurrent/recurrent_scan.hpp"

#include <string>
#include <utility>

#include "gradient/scan_writer.hpp"
#include "ops/recurrent/recurrent.hpp"
#include "ops/recurrent/recurrent_cell.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kX, kW, kR, kB, kLengths, kInitialH, kInitialC, kP };

struct DirectionOutputs {
  Value *y, *h, *c;
};

class LayerWriter {
 public:
  LayerWriter(Builder& b, const Node& node, CellKind kind)
      : b_(b), node_(node), kind_(kind), specs_(cell_specs(node, kind)) {
    batch_first_ = node.attr_int("layout", 0) != 0;
    x_ = batch_first_ ? transpose(node.input(kX), {1, 0, 2}) : node.input(kX);
    if (node.input(kLengths) != nullptr) mask_ = mask();
  }

  std::vector<Value*> write() {
    std::vector<Value*> y, h, c;
    for (std::size_t d = 0; d < specs_.size(); ++d) {
      DirectionOutputs out = direction(d);
      y.push_back(unsqueeze(out.y, 1));
      h.push_back(unsqueeze(out.h, 0));
      if (out.c != nullptr) c.push_back(unsqueeze(out.c, 0));
    }
    Value* all = concat(y, 1);
    std::vector<Value*> outputs{batch_first_ ? transpose(all, {2, 0, 1, 3}) : all, state_output(h)};
    if (kind_ == CellKind::lstm) outputs.push_back(state_output(c));
    return outputs;
  }

 private:
  Value* transpose(Value* v, std::vector<std::int64_t> perm) {
    return b_.op("Transpose", {v}, {{"perm", std::move(perm)}});
  }
  Value* unsqueeze(Value* v, std::int64_t axis) { return b_.op("Unsqueeze", {v, b_.ints({axis})}); }
  Value* concat(const std::vector<Value*>& parts, std::int64_t axis) {
    return parts.size() == 1 ? parts[0] : b_.op("Concat", parts, {{"axis", axis}});
  }
  Value* state_output(const std::vector<Value*>& parts) {
    Value* all = concat(parts, 0);
    return batch_first_ ? transpose(all, {1, 0, 2}) : all;
  }
  Value* pick(Value* v, std::size_t index, std::int64_t axis = 0) {
    return b_.op("Gather", {v, b_.integer(static_cast<std::int64_t>(index))}, {{"axis", axis}});
  }
  Value* extent(Value* v, std::int64_t axis) { return b_.op("Shape", {v}, {{"start", axis}, {"end", axis + 1}}); }
  /// Of a vector: `parts` equal pieces as rows.
  Value* rows(Value* v, std::int64_t parts) { return b_.op("Reshape", {v, b_.ints({parts, -1})}); }

  /// [steps, batch, 1]: whether the step lies within the sequence.
  Value* mask() {
    Value* steps = b_.op("Squeeze", {extent(x_, 0), b_.ints({0})});
    Value* t = b_.op("Range", {b_.integer(0), steps, b_.integer(1)});
    Value* lengths = b_.op("Cast", {node_.input(kLengths)}, {{"to", static_cast<std::int64_t>(DType::int64)}});
    return b_.op("Less", {b_.op("Unsqueeze", {t, b_.ints({1, 2})}), unsqueeze(lengths, 1)});
  }

  Value* initial_state(std::size_t input, std::size_t d) {
    if (node_.input(input) != nullptr) return pick(node_.input(input), d, batch_first_ ? 1 : 0);
    Value* shape = b_.op("Concat", {extent(x_, 1), extent(node_.input(kR), 2)}, {{"axis", std::int64_t{0}}});
    return b_.op("Expand", {b_.scalar(0, x_), shape});
  }

  /// X W' with every bias that can be added ahead of the steps; `hidden_bias` gets the one that cannot.
  Value* project(std::size_t d, Value*& hidden_bias) {
    Value* projected = b_.op("MatMul", {x_, transpose(pick(node_.input(kW), d), {1, 0})});
    if (node_.input(kB) == nullptr) return projected;
    Value* both = rows(pick(node_.input(kB), d), 2);
    Value* bias = pick(both, 0);
    if (specs_[d].linear_before_reset) {
      hidden_bias = pick(both, 1);
    } else {
      bias = b_.op("Add", {bias, pick(both, 1)});
    }
    return b_.op("Add", {projected, bias});
  }

  /// The Scan's inputs: states, then sequences.
  struct Reads {
    std::vector<Value*> states, sequences;
  };

  void write_body(ScanBody& body, std::size_t d, const Reads& reads, Value* hidden_bias) {
    CellInputs in;
    in.h = body.state("h", reads.states[0]);
    if (kind_ == CellKind::lstm) in.c = body.state("c", reads.states[1]);
    in.projected = body.step_of("projected", reads.sequences[0]);
    Value* within = mask_ == nullptr ? nullptr : body.step_of("within", mask_);
    in.recurrence = body.capture("recurrence", transpose(pick(node_.input(kR), d), {1, 0}));
    in.hidden_bias = body.capture("hidden_bias", hidden_bias);
    if (kind_ == CellKind::lstm && node_.input(kP) != nullptr) {
      Value* p = rows(pick(node_.input(kP), d), 3);
      in.peephole_i = body.capture("peephole_i", pick(p, 0));
      in.peephole_o = body.capture("peephole_o", pick(p, 1));
      in.peephole_f = body.capture("peephole_f", pick(p, 2));
    }
    CellState out = write_cell(body.b, specs_[d], in);
    // Past the end of its sequence a row keeps its state and gives zeros.
    auto within_or = [&](Value* v, Value* otherwise) {
      return within == nullptr ? v : body.b.op("Where", {within, v, otherwise});
    };
    body.graph->outputs = {within_or(out.h, in.h)};
    if (out.c != nullptr) body.graph->outputs.push_back(within_or(out.c, in.c));
    Value* y = within == nullptr ? body.b.op("Identity", {out.h}) : within_or(out.h, body.b.scalar(0, out.h));
    body.graph->outputs.push_back(y);
  }

  DirectionOutputs direction(std::size_t d) {
    Value* hidden_bias = nullptr;
    Reads reads;
    reads.states = {initial_state(kInitialH, d)};
    if (kind_ == CellKind::lstm) reads.states.push_back(initial_state(kInitialC, d));
    reads.sequences = {project(d, hidden_bias)};
    if (mask_ != nullptr) reads.sequences.push_back(mask_);
    const std::string name = node_.name + "_Grad/direction_" + std::to_string(d);
    ScanBody body(name);
    write_body(body, d, reads, hidden_bias);
    std::vector<Value*> out = add_scan(b_, name, std::move(body), reads.states, reads.sequences, specs_[d].reverse);
    return {out.back(), out[0], kind_ == CellKind::lstm ? out[1] : nullptr};
  }

  Builder& b_;
  const Node& node_;
  CellKind kind_;
  std::vector<CellSpec> specs_;
  bool batch_first_ = false;
  Value* x_ = nullptr;  // [steps, batch, inputs]
  Value* mask_ = nullptr;
};

}  // namespace

std::vector<Value*> write_recurrent_scan(Builder& b, const Node& node, CellKind kind) {
  return LayerWriter(b, node, kind).write();
}

}  // namespace backpass
