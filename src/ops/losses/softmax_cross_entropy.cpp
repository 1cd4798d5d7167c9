// ONNX Runtime's older losses, with classes on the last axis:
//   SoftmaxCrossEntropy(logits, targets) against target distributions, SparseSoftmaxCrossEntropy(logits, labels,
//   weights) against class labels with one weight per position, and their gradients from the log probabilities.
#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "ops/losses/label_loss.hpp"

namespace backpass {
namespace {

void infer_loss(InferContext& c) {
  c.require(loss_reduction(c.node) != LossReduction::none, "reduction: got 'none', expected 'sum' or 'mean'");
  c.set(0, c.dtype(0), {});
  c.set_dtype(1, c.dtype(0));
  c.set_shape(1, c.shape(0));
  c.require(!c.shape(0).empty(), "logits: got a scalar, expected [..., classes]");
}

void infer_gradient(InferContext& c) {
  c.require(loss_reduction(c.node) != LossReduction::none, "reduction: got 'none', expected 'sum' or 'mean'");
  c.set_dtype(0, c.dtype(1));
  c.set_shape(0, c.shape(1));
}

/// Number of rows as a scalar of the logits' type.
Value* row_count(Builder& b, Value* logits) {
  Value* rows = b.op("ReduceProd", {b.op("Shape", {logits}, {{"end", std::int64_t{-1}}}), nullptr},
                     {{"keepdims", std::int64_t{0}}});
  return b.op("Cast", {rows}, {{"to", static_cast<std::int64_t>(logits->type.dtype)}});
}

std::vector<Value*> expand_dense(Builder& b, const Node& node) {
  Value* logits = node.input(0);
  Value* log_prob = b.op("LogSoftmax", {logits});
  Value* sum = b.op("ReduceSum", {b.op("Mul", {log_prob, node.input(1)}), nullptr}, {{"keepdims", std::int64_t{0}}});
  Value* loss = b.op("Neg", {sum});
  if (loss_reduction(node) == LossReduction::mean) loss = b.op("Div", {loss, row_count(b, logits)});
  return {loss, log_prob};
}

std::vector<Value*> expand_dense_gradient(Builder& b, const Node& node) {
  Value* log_prob = node.input(1);
  Value* scale = node.input(0);
  if (loss_reduction(node) == LossReduction::mean) scale = b.op("Div", {scale, row_count(b, log_prob)});
  return {b.op("Mul", {b.op("Sub", {b.op("Exp", {log_prob}), node.input(2)}), scale})};
}

/// [..., classes] -> [rows, classes], and labels or weights to [rows].
Value* as_rows(Builder& b, Value* x) { return b.op("Flatten", {x}, {{"axis", std::int64_t{-1}}}); }
Value* as_list(Builder& b, Value* x) { return b.op("Reshape", {x, b.ints({-1})}); }
Value* in_shape_of(Builder& b, Value* x, Value* like) {
  return b.op("Reshape", {x, b.op("Shape", {like})}, {{"allowzero", std::int64_t{1}}});
}

std::vector<Value*> expand_sparse(Builder& b, const Node& node) {
  Value* logits = node.input(0);
  Value* weights = node.input(2);
  std::string reduction = weights == nullptr ? node.attr_string("reduction", "mean") : "none";
  std::vector<Value*> out =
      b.ops("SoftmaxCrossEntropyLoss", {as_rows(b, logits), as_list(b, node.input(1))}, 2, {{"reduction", reduction}});
  Value* loss = out[0];
  if (weights != nullptr) {
    Value* w = as_list(b, weights);
    AttributeList no_axes{{"keepdims", std::int64_t{0}}};
    loss = b.op("ReduceSum", {b.op("Mul", {loss, w}), nullptr}, no_axes);
    if (loss_reduction(node) == LossReduction::mean)
      loss = b.op("Div", {loss, b.op("ReduceSum", {w, nullptr}, no_axes)});
  }
  return {loss, in_shape_of(b, out[1], logits)};
}

std::vector<Value*> expand_sparse_gradient(Builder& b, const Node& node) {
  Value* dy = node.input(0);
  Value* log_prob = node.input(1);
  Value* weights = node.input(3);
  std::string reduction = node.attr_string("reduction", "mean");
  if (weights != nullptr) {
    Value* w = as_list(b, weights);
    if (reduction == "mean") dy = b.op("Div", {dy, b.op("ReduceSum", {w, nullptr}, {{"keepdims", std::int64_t{0}}})});
    dy = b.op("Mul", {w, dy});
    reduction = "none";
  }
  Value* dx = b.op("SoftmaxCrossEntropyLossGrad", {dy, as_rows(b, log_prob), as_list(b, node.input(2))},
                   {{"reduction", reduction}}, "com.microsoft");
  return {in_shape_of(b, dx, log_prob)};
}

const Register kDense({.name = "SoftmaxCrossEntropy",
                       .domain = "com.microsoft",
                       .doc = "cross entropy of softmax(logits) against target distributions",
                       .inputs = {2, 2},
                       .outputs = {1, 2},
                       .types = types::floats,
                       .infer = infer_loss,
                       .expand = expand_dense});
const Register kDenseGradient({.name = "SoftmaxCrossEntropyGrad",
                               .domain = "com.microsoft",
                               .doc = "gradient of SoftmaxCrossEntropy",
                               .inputs = {3, 3},
                               .types = types::floats,
                               .infer = infer_gradient,
                               .expand = expand_dense_gradient});

OpDef sparse(std::string_view domain) {
  return {.name = "SparseSoftmaxCrossEntropy",
          .domain = domain,
          .since = 9,
          .doc = "cross entropy of softmax(logits) against labels, classes on the last axis",
          .inputs = {2, 3},
          .outputs = {1, 2},
          .types = types::floats,
          .infer = infer_loss,
          .expand = expand_sparse};
}
OpDef sparse_gradient(std::string_view domain) {
  return {.name = "SparseSoftmaxCrossEntropyGrad",
          .domain = domain,
          .since = 9,
          .doc = "gradient of SparseSoftmaxCrossEntropy",
          .inputs = {3, 4},
          .types = types::floats,
          .infer = infer_gradient,
          .expand = expand_sparse_gradient};
}
const Register kSparse(sparse(""));
const Register kSparseGradient(sparse_gradient(""));
const Register kSparseMicrosoft(sparse("com.microsoft"));
const Register kSparseGradientMicrosoft(sparse_gradient("com.microsoft"));

}  // namespace
}  // namespace backpass
