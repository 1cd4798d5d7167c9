// LinearCrossEntropy(x, weight, labels, bias, class_weights) -> loss, dx, dweight, dbias. Made by the pass chunk_loss.
//
//   loss     SoftmaxCrossEntropyLoss of x weight + bias against labels; x is [rows, features]
//   d...     gradients of the loss, as if 1 flowed back to it; with reduction "sum" and "mean"
//   transB   not 0: weight is [classes, features], else [features, classes]
//   reduction, ignore_index   as SoftmaxCrossEntropyLoss has them
#include <limits>

#include "gradient/composite.hpp"
#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "ops/flops.hpp"
#include "ops/losses/label_loss.hpp"
#include "ops/losses/linear_loss.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kX, kWeight, kLabels, kBias, kClassWeights };

/// Which output is the gradient of this input.
std::size_t gradient_of(Input i) { return i == kBias ? 3 : i + 1; }

bool classes_first(const Node& node) { return node.attr_int("transB", 0) != 0; }

void check_types(InferContext& c) {
  c.require(types::indices.has(c.dtype(kLabels)), "labels: got ", name_of(c.dtype(kLabels)),
            ", expected int32 or int64");
  for (std::size_t i : {kWeight, kBias, kClassWeights}) {
    if (!c.has_input(i)) continue;
    c.require(c.dtype(i) == c.dtype(kX), "element type of input ", i, ": got ", name_of(c.dtype(i)), ", expected ",
              name_of(c.dtype(kX)), " as x has");
  }
}

void infer(InferContext& c) {
  const LossReduction reduction = loss_reduction(c.node);
  check_types(c);
  c.set_dtype(0, c.dtype(kX));
  for (Input i : {kX, kWeight, kBias}) {
    const std::size_t output = gradient_of(i);
    if (!c.has_output(output)) continue;
    c.require(reduction != LossReduction::none && c.has_input(i), "gradient ", i,
              ": expected none without its input, or where losses are not added up");
    c.set_dtype(output, c.dtype(kX));
    if (c.knows_shape(i)) c.set_shape(output, c.shape(i));
  }
  if (reduction != LossReduction::none) c.set_shape(0, {});
  const Shape& x = c.shape(kX);
  const Shape& weight = c.shape(kWeight);
  const Shape& labels = c.shape(kLabels);
  c.require(x.size() == 2 && weight.size() == 2 && labels.size() == 1, "shapes: got x ", shown(x), ", weight ",
            shown(weight), ", labels ", shown(labels), ", expected two, two and one axis");
  const std::size_t classes = classes_first(c.node) ? 0 : 1;
  c.unify(x[1], weight[1 - classes], "features");
  const Dim rows = c.unify(x[0], labels[0], "rows of x and labels");
  for (std::size_t i : {kBias, kClassWeights}) {
    if (!c.has_input(i)) continue;
    c.require(c.rank(i) == 1, "input ", i, ": got shape ", shown(c.shape(i)), ", expected one value per class");
    c.unify(c.shape(i)[0], weight[classes], "classes");
  }
  if (reduction == LossReduction::none) c.set_shape(0, {rows});
}

/// Labels come from data: each is checked before anything is computed.
template <class T, class I>
void count_rows(std::int64_t rows, std::int64_t classes, const I* labels, const T* weights,
                const std::optional<std::int64_t>& ignore, const std::string& where, CountedRows<T>& counted) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto label = checked_label(labels, i, classes, ignore, where);
    if (!label) continue;
    counted.rows[counted.count] = i;
    counted.labels[counted.count] = *label;
    counted.weights[counted.count] = weights == nullptr ? T{1} : weights[*label];
    counted.total += static_cast<double>(counted.weights[counted.count]);
    ++counted.count;
  }
}

template <class T>
T fold(LossReduction reduction, std::int64_t rows, const double* losses, double total) {
  double sum = 0;
  for (std::int64_t i = 0; i < rows; ++i) sum += losses[i];
  if (reduction == LossReduction::mean) sum = total == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / total;
  return static_cast<T>(sum);
}

LinearLossShape shape_of(const PrepareContext& c) {
  const bool first = classes_first(c.node);
  const Dims& weight = c.in(kWeight).dims;
  return {c.in(kX).dims[0], c.in(kX).dims[1], weight[first ? 0 : 1], first};
}

struct Places {
  std::size_t work, losses, rows, labels, weights;
};

Kernel prepare(PrepareContext& c) {
  const DType dtype = c.in(kX).dtype;
  const DType label_type = c.in(kLabels).dtype;
  const LinearLossShape s = shape_of(c);
  const LossReduction reduction = loss_reduction(c.node);
  const std::optional<std::int64_t> ignore = ignore_attribute(c.node);
  const bool wants_gradients = c.has_output(1) || c.has_output(2) || c.has_output(3);
  const std::size_t element = byte_size(dtype, 1);
  Places at{};
  at.work = c.reserve(linear_loss_scratch(s, element, wants_gradients));
  at.losses = c.reserve(byte_size(DType::float64, s.rows));
  at.rows = c.reserve(byte_size(DType::int64, s.rows));
  at.labels = c.reserve(byte_size(DType::int64, s.rows));
  at.weights = c.reserve(byte_size(dtype, s.rows));
  auto input = [](const KernelArgs& a, bool present, std::size_t i) { return present ? a.inputs[i] : nullptr; };
  const bool biased = c.has_input(kBias);
  const bool weighted = c.has_input(kClassWeights);
  const bool wants[] = {c.has_output(1), c.has_output(2), c.has_output(3)};
  return [=, where = c.node.label(), wants = std::vector<bool>(wants, wants + 3)](const KernelArgs& a) {
    visit_real(dtype, [&]<class T>() {
      const auto* class_weights = static_cast<const T*>(input(a, weighted, kClassWeights));
      auto* losses = reinterpret_cast<double*>(a.scratch + at.losses);
      CountedRows<T> counted{.rows = reinterpret_cast<std::int64_t*>(a.scratch + at.rows),
                             .labels = reinterpret_cast<std::int64_t*>(a.scratch + at.labels),
                             .weights = reinterpret_cast<T*>(a.scratch + at.weights)};
      visit_index(label_type, [&]<class I>() {
        count_rows(s.rows, s.classes, a.in<I>(kLabels), class_weights, ignore, where, counted);
      });
      const LinearLossData<T> data{a.in<T>(kX),
                                   a.in<T>(kWeight),
                                   static_cast<const T*>(input(a, biased, kBias)),
                                   losses,
                                   wants[0] ? a.out<T>(1) : nullptr,
                                   wants[1] ? a.out<T>(2) : nullptr,
                                   wants[2] ? a.out<T>(3) : nullptr};
      const bool is_mean = reduction == LossReduction::mean && counted.total != 0;
      linear_loss(s, data, counted, is_mean ? counted.total : 1, a.scratch + at.work);
      if (reduction == LossReduction::none) {
        for (std::int64_t i = 0; i < s.rows; ++i) a.out<T>(0)[i] = static_cast<T>(losses[i]);
      } else {
        a.out<T>(0)[0] = fold<T>(reduction, s.rows, losses, counted.total);
      }
    });
  };
}

/// The same with all scores at once.
std::vector<Value*> write(Builder& b, const Node& node) {
  Value* weight = node.input(kWeight);
  if (classes_first(node)) weight = b.op("Transpose", {weight}, {{"perm", std::vector<std::int64_t>{1, 0}}});
  Value* scores = b.op("MatMul", {node.input(kX), weight});
  if (node.input(kBias) != nullptr) scores = b.op("Add", {scores, node.input(kBias)});
  AttributeList attributes;
  for (const char* key : {"reduction", "ignore_index"}) {
    if (auto it = node.attributes.find(key); it != node.attributes.end()) attributes.push_back(*it);
  }
  return {b.op("SoftmaxCrossEntropyLoss", {scores, node.input(kLabels), node.input(kClassWeights)}, attributes)};
}

void gradient(GradientContext& g) { composite_gradient(g, write); }

bool is_one(const Value* v) {
  if (!v->constant || v->constant->size() != 1 || !types::reals.has(v->constant->dtype())) return false;
  bool one = false;
  visit_real(v->constant->dtype(), [&]<class T>() { one = *v->constant->as<T>() == T{1}; });
  return one;
}

/// Gradients as the forward node computes them, which become outputs of it, times what flows back.
void fused_gradient(GradientContext& g) {
  if (g.wants(kClassWeights) || loss_reduction(g.node) == LossReduction::none) return gradient(g);
  Node* forward = g.y()->producer;
  for (Input i : {kX, kWeight, kBias}) {
    if (!g.wants(i)) continue;
    const std::size_t output = gradient_of(i);
    if (forward->outputs.size() <= output) forward->outputs.resize(output + 1, nullptr);
    Value*& unit = forward->outputs[output];
    if (unit == nullptr) {
      unit = g.b.graph.add_value(g.x(i)->name + "_unit_grad", g.x(i)->type);
      unit->producer = forward;
    }
    g.set(i, is_one(g.dy()) ? unit : g.op("ScaleGradient", {unit, g.dy()}, {}, "backpass"));
  }
}

const Register kLoss({.name = "LinearCrossEntropy",
                      .domain = "backpass",
                      .doc = "cross entropy of softmax(x weight + bias) with its gradients, some rows at a time",
                      .inputs = {3, 5},
                      .outputs = {1, 4},
                      .types = types::floats,
                      .infer = infer,
                      .prepare = prepare,
                      .gradient = gradient,
                      .fused_gradient = fused_gradient,
                      .half_through_float = true,
                      .flops = [](const Node& node) {
                        const Dim products = node.outputs.size() > 1 ? 3 : 1;  // scores, and two gradients
                        const Dim rows = flops::shape(node.inputs.at(0)).at(0);
                        return Dim(2) * products * rows * flops::elements(node.inputs.at(1));
                      }});

}  // namespace
}  // namespace backpass
