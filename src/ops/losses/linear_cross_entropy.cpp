// LinearCrossEntropy(x, weight, labels, bias, class_weights) -> loss, dx, dweight, dbias. Made by the pass chunk_loss.
//
//   loss     SoftmaxCrossEntropyLoss of x weight + bias against labels; x is [rows, features]
//   d...     gradients of the loss, as if 1 flowed back to it; with reduction "sum" and "mean"
//   transB   not 0: weight is [classes, features], else [features, classes]
//   reduction, ignore_index   as SoftmaxCrossEntropyLoss has them
//   label_smoothing           as PyTorch's cross_entropy has it: a part of the label that all classes share
//   weight_type               weights are rounded to it before they are used; they may be of 16 bits themselves. Where
//                             the processor multiplies bfloat16, x and the gradients of scores are rounded to it, too
//   mean_of_none              of no label that counts; not a number without it
//   rows_at_once              at most so many rows are worked on together, whatever memory that takes
//
// LinearCrossEntropyGrad(flow, x, weight, labels, bias, class_weights) -> dx, dweight, dbias: with reduction "none"
// what flows back to each row is known later only; scores are computed again.
#include <limits>

#include "gradient/composite.hpp"
#include "gradient/rule.hpp"
#include "ops/flops.hpp"
#include "ops/losses/label_loss.hpp"
#include "ops/losses/linear_loss_node.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

enum Input : std::size_t { kX, kWeight, kLabels, kBias, kClassWeights };

/// Which gradient is that of this input.
std::size_t gradient_of(Input i) { return i == kBias ? std::size_t{2} : std::size_t{i}; }

void infer(InferContext& c) {
  const LossReduction reduction = loss_reduction(c.node);
  c.set_dtype(0, c.dtype(kX));
  if (reduction != LossReduction::none) c.set_shape(0, {});
  for (std::size_t k = 1; k < 4; ++k) {
    c.require(reduction != LossReduction::none || !c.has_output(k), "gradient ", k,
              ": expected none where losses are not added up");
  }
  const Dim rows = infer_linear_loss(c, 0, 1);
  if (reduction == LossReduction::none) c.set_shape(0, {rows});
}

void infer_gradient(InferContext& c) {
  const Dim rows = infer_linear_loss(c, 1, 0);
  c.require(c.dtype(0) == c.dtype(1), "flow: got ", name_of(c.dtype(0)), ", expected ", name_of(c.dtype(1)));
  c.require(c.rank(0) == 1, "flow: got shape ", shown(c.shape(0)), ", expected one value per row");
  c.unify(c.shape(0)[0], rows, "rows of flow and x");
}

template <class T>
T fold(LossReduction reduction, std::int64_t rows, const double* losses, double total, double mean_of_none) {
  double sum = 0;
  for (std::int64_t i = 0; i < rows; ++i) sum += losses[i];
  if (reduction == LossReduction::mean) sum = total == 0 ? mean_of_none : sum / total;
  return static_cast<T>(sum);
}

Kernel prepare(PrepareContext& c) {
  const LossReduction reduction = loss_reduction(c.node);
  const auto mean_of_none =
      static_cast<double>(c.node.attr_float("mean_of_none", std::numeric_limits<float>::quiet_NaN()));
  const LinearLossNode node(c, 0, 1);
  return [=](const KernelArgs& a) {
    const double total = node.run(a, nullptr, reduction == LossReduction::mean);
    const double* losses = node.losses(a);
    visit_real(node.dtype(), [&]<class T>() {
      if (reduction == LossReduction::none) {
        for (std::int64_t i = 0; i < node.rows(); ++i) a.out<T>(0)[i] = static_cast<T>(losses[i]);
      } else {
        a.out<T>(0)[0] = fold<T>(reduction, node.rows(), losses, total, mean_of_none);
      }
    });
  };
}

Kernel prepare_gradient(PrepareContext& c) {
  const LinearLossNode node(c, 1, 0);
  return [=](const KernelArgs& a) { node.run(a, a.inputs[0], false); };
}

AttributeList attributes_of(const Node& node, std::initializer_list<const char*> keys) {
  AttributeList attributes;
  for (const char* key : keys) {
    if (auto it = node.attributes.find(key); it != node.attributes.end()) attributes.push_back(*it);
  }
  return attributes;
}

/// The weight, rounded, of the type that x has.
Value* widened_weight(Builder& b, const Node& node) {
  Value* v = node.input(kWeight);
  const std::int64_t rounded = node.attr_int("weight_type", 0);
  const DType dtype = node.input(kX)->type.dtype;
  if (rounded != 0 && v->type.dtype == dtype) v = b.op("Cast", {v}, {{"to", rounded}});
  return v->type.dtype == dtype ? v : b.op("Cast", {v}, {{"to", static_cast<std::int64_t>(dtype)}});
}

/// s / C of the loss of each class, by its weight: added to (1 - s) of the loss of the label.
Value* with_smoothing(Builder& b, const Node& node, Value* scores, double smoothing) {
  const AttributeList whole{{"keepdims", std::int64_t{0}}};
  Value* labels = node.input(kLabels);
  Value* weights = node.input(kClassWeights);
  AttributeList attributes = attributes_of(node, {"ignore_index"});
  attributes.emplace_back("reduction", std::string("none"));
  Value* hard = b.op("SoftmaxCrossEntropyLoss", {scores, labels, weights}, attributes);
  Value* log = b.op("LogSoftmax", {scores}, {{"axis", std::int64_t{1}}});
  if (weights != nullptr) log = b.op("Mul", {log, weights});
  Value* soft = b.op("Neg", {b.op("ReduceMean", {log, b.ints({1})}, whole)});
  Value* known = b.op("Cast", {labels}, {{"to", static_cast<std::int64_t>(DType::int64)}});
  Value* one = b.op("Expand", {b.scalar(1, scores), b.op("Shape", {labels})});
  Value* mass = one;
  if (const auto ignore = ignore_attribute(node)) {
    Value* ignored = b.op("Equal", {known, b.integer(*ignore)});
    soft = b.op("Where", {ignored, b.scalar(0, scores), soft});
    known = b.op("Where", {ignored, b.integer(0), known});
    if (weights != nullptr) mass = b.op("Gather", {weights, known}, {{"axis", std::int64_t{0}}});
    mass = b.op("Where", {ignored, b.scalar(0, scores), mass});
  } else if (weights != nullptr) {
    mass = b.op("Gather", {weights, known}, {{"axis", std::int64_t{0}}});
  }
  Value* loss = b.op(
      "Add", {b.op("Mul", {hard, b.scalar(1 - smoothing, scores)}), b.op("Mul", {soft, b.scalar(smoothing, scores)})});
  const LossReduction reduction = loss_reduction(node);
  if (reduction != LossReduction::none) loss = b.op("ReduceSum", {loss}, whole);
  return reduction == LossReduction::mean ? b.op("Div", {loss, b.op("ReduceSum", {mass}, whole)}) : loss;
}

/// The same with all scores at once.
std::vector<Value*> write(Builder& b, const Node& node) {
  Value* weight = widened_weight(b, node);
  if (node.attr_int("transB", 0) != 0) {
    weight = b.op("Transpose", {weight}, {{"perm", std::vector<std::int64_t>{1, 0}}});
  }
  Value* scores = b.op("MatMul", {node.input(kX), weight});
  if (node.input(kBias) != nullptr) scores = b.op("Add", {scores, node.input(kBias)});
  const double smoothing = label_smoothing(node);
  if (smoothing != 0) return {with_smoothing(b, node, scores, smoothing)};
  return {b.op("SoftmaxCrossEntropyLoss", {scores, node.input(kLabels), node.input(kClassWeights)},
               attributes_of(node, {"reduction", "ignore_index"}))};
}

void gradient(GradientContext& g) { composite_gradient(g, write); }

bool is_one(const Value* v) {
  if (!v->constant || v->constant->size() != 1 || !types::reals.has(v->constant->dtype())) return false;
  bool one = false;
  visit_real(v->constant->dtype(), [&]<class T>() { one = *v->constant->as<T>() == T{1}; });
  return one;
}

/// Gradients as the forward node computes them, which become outputs of it, times what flows back.
void scaled_gradients(GradientContext& g) {
  Node* forward = g.y()->producer;
  for (Input i : {kX, kWeight, kBias}) {
    if (!g.wants(i)) continue;
    const std::size_t output = 1 + gradient_of(i);
    if (forward->outputs.size() <= output) forward->outputs.resize(output + 1, nullptr);
    Value*& unit = forward->outputs[output];
    if (unit == nullptr) {
      Type type = g.x(i)->type;
      type.dtype = g.x(kX)->type.dtype;
      unit = g.b.graph.add_value(g.x(i)->name + "_unit_grad", std::move(type));
      unit->producer = forward;
    }
    Value* scaled = is_one(g.dy()) ? unit : g.op("ScaleGradient", {unit, g.dy()}, {}, "backpass");
    g.set(i, g.cast_like(scaled, g.x(i)));
  }
}

/// Of losses that are not added up.
void gradients_by_row(GradientContext& g) {
  std::vector<Value*> inputs{g.dy()};
  inputs.insert(inputs.end(), g.node.inputs.begin(), g.node.inputs.end());
  const AttributeList attributes =
      attributes_of(g.node, {"transB", "ignore_index", "label_smoothing", "weight_type", "rows_at_once"});
  const std::size_t count = g.wants(kBias) ? 3 : 2;
  const std::vector<Value*> made = g.b.ops("LinearCrossEntropyGrad", std::move(inputs), count, attributes, "backpass");
  for (Input i : {kX, kWeight, kBias}) {
    const std::size_t k = gradient_of(i);
    if (g.wants(i)) {
      g.set(i, g.cast_like(made[k], g.x(i)));
    } else if (k < count) {
      made[k]->producer->outputs[k] = nullptr;
    }
  }
}

void fused_gradient(GradientContext& g) {
  if (g.wants(kClassWeights)) return gradient(g);
  return loss_reduction(g.node) == LossReduction::none ? gradients_by_row(g) : scaled_gradients(g);
}

/// The scores, and the gradients of x and of the weight that are wanted; x is input `first`.
Dim products(const Node& node, std::size_t first, std::size_t gradients) {
  const int count = 1 + (node.output(gradients) != nullptr ? 1 : 0) + (node.output(gradients + 1) != nullptr ? 1 : 0);
  return Dim(2 * count) * flops::shape(node.inputs.at(first)).at(0) * flops::elements(node.inputs.at(first + 1));
}

const Register kLoss({.name = "LinearCrossEntropy",
                      .domain = "backpass",
                      .doc = "cross entropy of softmax(x weight + bias) with its gradients, some rows at a time",
                      .inputs = {3, 5},
                      .outputs = {1, 4},
                      .types = types::reals,
                      .infer = infer,
                      .prepare = prepare,
                      .gradient = gradient,
                      .fused_gradient = fused_gradient,
                      .flops = [](const Node& node) { return products(node, 0, 1); }});

const Register kGradient({.name = "LinearCrossEntropyGrad",
                          .domain = "backpass",
                          .doc = "gradients of LinearCrossEntropy where each row has a loss of its own",
                          .inputs = {4, 6},
                          .outputs = {1, 3},
                          .types = types::reals,
                          .infer = infer_gradient,
                          .prepare = prepare_gradient,
                          .flops = [](const Node& node) { return products(node, 1, 0); }});

}  // namespace
}  // namespace backpass
