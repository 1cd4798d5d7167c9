#include "ops/recurrent/recurrent.hpp"

#include <algorithm>
#include <cctype>
#include <span>
#include <string>
#include <utility>

#include "support/printable.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kX, kW, kR, kB, kLengths, kInitialH, kInitialC, kP };

struct KnownActivation {
  std::string_view name;
  Activation value;  ///< with its default parameters
  bool alpha, beta;  ///< which parameters it takes
};

constexpr KnownActivation kActivations[] = {
    {"sigmoid", {ActivationKind::sigmoid, 0, 0}, false, false},
    {"tanh", {ActivationKind::tanh, 0, 0}, false, false},
    {"relu", {ActivationKind::relu, 0, 0}, false, false},
    {"affine", {ActivationKind::affine, 1, 0}, true, true},
    {"leakyrelu", {ActivationKind::leaky_relu, 0.01F, 0}, true, false},
    {"thresholdedrelu", {ActivationKind::thresholded_relu, 1, 0}, true, false},
    {"scaledtanh", {ActivationKind::scaled_tanh, 1, 1}, true, true},
    {"hardsigmoid", {ActivationKind::hard_sigmoid, 0.2F, 0.5F}, true, true},
    {"elu", {ActivationKind::elu, 1, 0}, true, false},
    {"softsign", {ActivationKind::softsign, 0, 0}, false, false},
    {"softplus", {ActivationKind::softplus, 0, 0}, false, false},
};

// Reads activations in order; alpha and beta are lists that each function takes from as it needs.
class ActivationReader {
 public:
  explicit ActivationReader(const Node& node)
      : node_(node), alpha_(node.attr_floats("activation_alpha")), beta_(node.attr_floats("activation_beta")) {}

  Activation read(const std::string& name) {
    std::string lower = name;
    std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char ch) { return std::tolower(ch); });
    for (const KnownActivation& known : kActivations) {
      if (known.name != lower) continue;
      Activation value = known.value;
      if (known.alpha && next_alpha_ < alpha_.size()) value.alpha = alpha_[next_alpha_++];
      if (known.beta && next_beta_ < beta_.size()) value.beta = beta_[next_beta_++];
      return value;
    }
    fail(node_.label(), " attribute 'activations': got ", printable(name),
         ", expected a name like Sigmoid, Tanh or Relu");
  }

 private:
  const Node& node_;
  std::vector<float> alpha_, beta_;
  std::size_t next_alpha_ = 0, next_beta_ = 0;
};

std::vector<std::string> activation_names(const Node& node, CellKind kind, std::size_t directions) {
  std::vector<std::string> one{"Tanh"};
  if (kind == CellKind::lstm) one = {"Sigmoid", "Tanh", "Tanh"};
  if (kind == CellKind::gru) one = {"Sigmoid", "Tanh"};
  std::vector<std::string> names = node.attr_strings("activations");
  if (names.empty())
    for (std::size_t d = 0; d < directions; ++d) names.insert(names.end(), one.begin(), one.end());
  // RNN's default of two functions also stands on nodes with one direction.
  const bool enough = names.size() == one.size() * directions || (kind == CellKind::rnn && names.size() > directions);
  if (!enough)
    fail(node.label(), " attribute 'activations': got ", names.size(), " names, expected ", one.size() * directions);
  return names;
}

bool batch_first(const Node& node) {
  const std::int64_t layout = node.attr_int("layout", 0);
  if (layout != 0 && layout != 1) fail(node.label(), " attribute 'layout': got ", layout, ", expected 0 or 1");
  return layout == 1;
}

// Unifies each extent of an input with what is expected of it.
void check_shape(InferContext& c, std::size_t input, std::string_view name, const Shape& expected) {
  if (!c.has_input(input)) return;
  if (input != kLengths)
    c.require(c.dtype(input) == c.dtype(kX), "element type of ", name, ": got ", name_of(c.dtype(input)), ", expected ",
              name_of(c.dtype(kX)), " as X");
  if (!c.knows_shape(input)) return;
  const Shape& shape = c.shape(input);
  c.require(shape.size() == expected.size(), "rank of ", name, ": got ", shape.size(), ", expected ", expected.size());
  for (std::size_t i = 0; i < shape.size(); ++i) c.unify(shape[i], expected[i], name);
}

Dim hidden_size(InferContext& c, CellKind kind) {
  const std::int64_t given = c.node.attr_int("hidden_size", -1);
  if (given >= 0) return given;
  c.require(!c.node.has_attribute("hidden_size"), "attribute 'hidden_size': got ", given, ", expected 0 or more");
  c.require(c.rank(kR) == 3, "rank of R: got ", c.rank(kR), ", expected 3");
  static_cast<void>(kind);
  return c.shape(kR)[2];
}

RecurrentLayout layout_of(const PrepareContext& c) {
  const Dims& x = c.in(kX).dims;
  RecurrentLayout l;
  l.batch_first = batch_first(c.node);
  l.steps = x[l.batch_first ? 1 : 0];
  l.batch = x[l.batch_first ? 0 : 1];
  l.inputs = x[2];
  l.hidden = c.in(kR).dims[2];
  l.directions = c.in(kW).dims[0];
  return l;
}

void check_lengths(const std::string& label, const std::int32_t* lengths, const RecurrentLayout& l) {
  if (lengths == nullptr) return;
  for (std::int64_t b = 0; b < l.batch; ++b)
    if (lengths[b] < 0 || lengths[b] > l.steps)
      fail(label, " sequence_lens[", b, "]: got ", lengths[b], ", expected 0 to ", l.steps);
}

// Weights that never change are put into the order the products read them once and for all.
template <class T>
void pack_constants(const PrepareContext& c, const RecurrentLayout& l, const std::vector<CellSpec>& specs,
                    RecurrentTensors<T>& t) {
  const std::int64_t width = gate_count(specs[0].kind) * l.hidden;
  for (std::int64_t d = 0; d < l.directions; ++d) {
    const auto i = static_cast<std::size_t>(d);
    if (const Tensor* w = c.in(kW).constant)
      t.packed_w[i] = shared_packed<T>(*w, true, l.inputs, width, d * width * l.inputs);
    if (const Tensor* r = c.in(kR).constant)
      t.packed_r[i] = shared_recurrence<T>(specs[i], l.hidden, *r, d * width * l.hidden);
  }
}

template <class T>
Kernel prepare_typed(PrepareContext& c, CellKind kind, const RecurrentOutputs& where) {
  const RecurrentLayout layout = layout_of(c);
  std::vector<CellSpec> specs = cell_specs(c.node, kind);
  RecurrentTensors<T> constant;
  pack_constants(c, layout, specs, constant);
  const std::size_t offset = c.reserve(static_cast<std::size_t>(recurrent_scratch(layout, kind)) * sizeof(T));
  const std::size_t inputs = c.inputs.size();
  const std::size_t outputs = c.outputs.size();
  return [=, label = c.node.label()](const KernelArgs& args) {
    auto in = [&](std::size_t i) { return i < inputs ? args.in<T>(i) : nullptr; };
    auto out = [&](int i) {
      return i >= 0 && static_cast<std::size_t>(i) < outputs ? args.out<T>(static_cast<std::size_t>(i)) : nullptr;
    };
    RecurrentTensors<T> t = constant;
    t.x = in(kX), t.w = in(kW), t.r = in(kR), t.bias = in(kB), t.initial_h = in(kInitialH);
    if (kind == CellKind::lstm) t.initial_c = in(kInitialC), t.peepholes = in(kP);
    t.lengths = kLengths < inputs ? args.in<std::int32_t>(kLengths) : nullptr;
    t.y = out(where.y), t.y_h = out(where.y_h), t.y_c = out(where.y_c);
    t.all_c = out(where.all_c), t.gates = out(where.gates);
    check_lengths(label, t.lengths, layout);
    run_recurrent<T>(layout, specs, t, reinterpret_cast<T*>(args.scratch + offset));
  };
}

}  // namespace

std::vector<CellSpec> cell_specs(const Node& node, CellKind kind) {
  const std::string direction = node.attr_string("direction", "forward");
  const bool both = direction == "bidirectional";
  if (!both && direction != "forward" && direction != "reverse")
    fail(node.label(), " attribute 'direction': got ", printable(direction),
         ", expected forward, reverse or bidirectional");
  const std::size_t directions = both ? 2 : 1;
  const std::vector<std::string> names = activation_names(node, kind, directions);
  const std::size_t each = kind == CellKind::lstm ? 3 : kind == CellKind::gru ? 2 : 1;
  ActivationReader reader(node);
  std::vector<CellSpec> specs(directions);
  for (std::size_t d = 0; d < directions; ++d) {
    CellSpec& spec = specs[d];
    spec.kind = kind;
    spec.f = reader.read(names[d * each]);
    if (each > 1) spec.g = reader.read(names[d * each + 1]);
    if (each > 2) spec.h = reader.read(names[d * each + 2]);
    spec.clip = node.attr_float("clip", kNoClip<float>);
    if (!(spec.clip > 0)) fail(node.label(), " attribute 'clip': got ", spec.clip, ", expected a positive number");
    spec.reverse = direction == "reverse" || d == 1;
    spec.input_forget = kind == CellKind::lstm && node.attr_int("input_forget", 0) != 0;
    spec.linear_before_reset = kind == CellKind::gru && node.attr_int("linear_before_reset", 0) != 0;
  }
  return specs;
}

void infer_recurrent(InferContext& c, CellKind kind, const RecurrentOutputs& where) {
  const DType dtype = c.dtype(kX);
  for (std::size_t i = 0; i < c.node.outputs.size(); ++i) c.set_dtype(i, dtype);
  const bool leads = batch_first(c.node);
  const auto directions = static_cast<std::int64_t>(cell_specs(c.node, kind).size());
  if (c.has_input(kLengths))
    c.require(c.dtype(kLengths) == DType::int32, "element type of sequence_lens: got ", name_of(c.dtype(kLengths)),
              ", expected int32");
  c.require(c.rank(kX) == 3, "rank of X: got ", c.rank(kX), ", expected 3");
  const Dim steps = c.shape(kX)[leads ? 1 : 0];
  const Dim batch = c.shape(kX)[leads ? 0 : 1];
  const Dim hidden = hidden_size(c, kind);
  const Dim width = hidden * gate_count(kind);
  const Shape state = leads ? Shape{batch, directions, hidden} : Shape{directions, batch, hidden};
  check_shape(c, kW, "W", {directions, width, c.shape(kX)[2]});
  check_shape(c, kR, "R", {directions, width, hidden});
  check_shape(c, kB, "B", {directions, width * 2});
  check_shape(c, kLengths, "sequence_lens", {batch});
  check_shape(c, kInitialH, "initial_h", state);
  if (kind == CellKind::lstm) {
    check_shape(c, kInitialC, "initial_c", state);
    check_shape(c, kP, "P", {directions, hidden * 3});
  }
  auto sequence = [&](const Dim& size) {
    return leads ? Shape{batch, steps, directions, size} : Shape{steps, directions, batch, size};
  };
  auto set = [&](int output, Shape shape) {
    if (output >= 0 && c.has_output(static_cast<std::size_t>(output)))
      c.set_shape(static_cast<std::size_t>(output), std::move(shape));
  };
  set(where.y, sequence(hidden));
  set(where.y_h, state);
  set(where.y_c, state);
  set(where.all_c, sequence(hidden));
  set(where.gates, sequence(width));
}

Kernel prepare_recurrent(PrepareContext& c, CellKind kind, const RecurrentOutputs& where) {
  Kernel kernel;
  visit_real(c.in(kX).dtype, [&]<class T>() { kernel = prepare_typed<T>(c, kind, where); });
  return kernel;
}

}  // namespace backpass
