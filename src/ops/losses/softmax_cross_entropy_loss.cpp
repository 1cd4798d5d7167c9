// SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss, with ONNX Runtime's forms that take ignore_index as an input.
#include "graph/op.hpp"
#include "ops/losses/label_loss.hpp"

namespace backpass {
namespace {

constexpr std::size_t kIgnoreInput = 3;

void infer(InferContext& c) { infer_label_loss(c, c.dtype(0)); }

/// Attribute output_type: the element type of the loss (0 or absent: that of the scores).
void infer_internal(InferContext& c) {
  std::int64_t code = c.node.attr_int("output_type", 0);
  if (code == 0) return infer_label_loss(c, c.dtype(0));
  c.require(is_known_dtype(code) && is_float(static_cast<DType>(code)), "output_type: got ", code,
            ", expected a float type");
  infer_label_loss(c, static_cast<DType>(code));
}

Kernel prepare_cross_entropy(PrepareContext& c) { return prepare_label_loss(c, true, std::nullopt); }
Kernel prepare_nll(PrepareContext& c) { return prepare_label_loss(c, false, std::nullopt); }
Kernel prepare_cross_entropy_internal(PrepareContext& c) { return prepare_label_loss(c, true, kIgnoreInput); }
Kernel prepare_nll_internal(PrepareContext& c) { return prepare_label_loss(c, false, kIgnoreInput); }

const Register kCrossEntropy({.name = "SoftmaxCrossEntropyLoss",
                              .since = 13,
                              .doc = "cross entropy of softmax(scores) against class labels",
                              .inputs = {2, 3},
                              .outputs = {1, 2},
                              .types = types::floats,
                              .infer = infer,
                              .prepare = prepare_cross_entropy,
                              .gradient = cross_entropy_gradient,
                              .fused_gradient = cross_entropy_fused_gradient,
                              .half_through_float = true});

const Register kNll({.name = "NegativeLogLikelihoodLoss",
                     .since = 22,
                     .doc = "minus the log probability of class labels",
                     .inputs = {2, 3},
                     .types = types::floats,
                     .infer = infer,
                     .prepare = prepare_nll,
                     .gradient = nll_gradient,
                     .half_through_float = true});

const Register kCrossEntropyInternal({.name = "SoftmaxCrossEntropyLossInternal",
                                      .domain = "com.microsoft",
                                      .doc = "SoftmaxCrossEntropyLoss with ignore_index as an input",
                                      .inputs = {2, 4},
                                      .outputs = {1, 2},
                                      .types = types::floats,
                                      .infer = infer_internal,
                                      .prepare = prepare_cross_entropy_internal,
                                      .gradient = cross_entropy_gradient,
                                      .fused_gradient = cross_entropy_fused_gradient,
                                      .half_through_float = true});

OpDef nll_internal(std::string_view name) {
  return {.name = name,
          .domain = "com.microsoft",
          .doc = "NegativeLogLikelihoodLoss with ignore_index as an input",
          .inputs = {2, 4},
          .types = types::floats,
          .infer = infer_internal,
          .prepare = prepare_nll_internal,
          .gradient = nll_gradient,
          .half_through_float = true};
}
const Register kNllInternal(nll_internal("NegativeLogLikelihoodLossInternal"));
const Register kNllInternal2(nll_internal("NegativeLogLikelihoodLossInternal2"));

}  // namespace
}  // namespace backpass
