#include "training/optimizer_model.hpp"

#include <array>
#include <string_view>

#include "ops/optimizers/clip_gradients.hpp"

namespace backpass {
namespace {

using onnx_io::NodeProto;

const onnx_io::AttributeProto* attribute(const NodeProto& node, std::string_view name) {
  for (const onnx_io::AttributeProto& a : node.attribute) {
    if (a.name == name) return &a;
  }
  return nullptr;
}

double number(const NodeProto& node, std::string_view name, double otherwise) {
  const onnx_io::AttributeProto* a = attribute(node, name);
  return a == nullptr ? otherwise : static_cast<double>(a->f);
}

std::int64_t integer(const NodeProto& node, std::string_view name, std::int64_t otherwise) {
  const onnx_io::AttributeProto* a = attribute(node, name);
  return a == nullptr ? otherwise : a->i;
}

WeightSettings adamw_settings(const NodeProto& node) {
  WeightSettings s;
  s.alpha = number(node, "alpha", 0.9F);
  s.beta = number(node, "beta", 0.999F);
  s.epsilon = number(node, "epsilon", 1e-8F);
  s.weight_decay = number(node, "weight_decay", 1e-2F);
  s.correct_bias = integer(node, "correct_bias", 1) != 0;
  const std::int64_t mode = integer(node, "adam_mode", 0);
  if (mode != 0 && mode != 1) fail("optimizer model: adam_mode: got ", mode, ", expected 0 or 1");
  s.decays_after = mode == 1;
  return s;
}

void check_inputs(const onnx_io::GraphProto& graph, bool is_adamw) {
  constexpr std::array<std::string_view, 6> kExpected = {
      "learning_rate", "step", "params", "gradients", "first_order_moments", "second_order_moments"};
  const std::size_t least = is_adamw ? 6 : 4;
  const std::size_t most = is_adamw ? 6 : 5;
  bool fits = graph.input.size() >= least && graph.input.size() <= most;
  for (std::size_t i = 0; fits && i < graph.input.size(); ++i) fits = graph.input[i].name == kExpected[i];
  if (fits) return;
  std::string got;
  for (const auto& input : graph.input) got += (got.empty() ? "" : ", ") + input.name;
  fail("optimizer model: inputs: got ", got, "; expected learning_rate, step, params, gradients, first_order_moments",
       is_adamw ? ", second_order_moments" : "");
}

}  // namespace

OptimizerModel::OptimizerModel(const onnx_io::ModelProto& model) {
  const NodeProto* update = nullptr;
  for (const NodeProto& node : model.graph.node) {
    if (node.op_type == "AdamWOptimizer" || node.op_type == "SGDOptimizerV2") {
      if (update != nullptr) fail("optimizer model: got more than one optimizer node, expected exactly one");
      update = &node;
    } else if (node.op_type == "InplaceClipGradNorm") {
      max_norm_ = number(node, "max_norm", 1);
    } else {
      fail("[", node.op_type, " '", node.name,
           "'] in an optimizer model: expected AdamWOptimizer, SGDOptimizerV2 or InplaceClipGradNorm");
    }
  }
  if (update == nullptr) fail("optimizer model: got no optimizer node, expected one AdamWOptimizer or SGDOptimizerV2");
  const bool is_adamw = update->op_type == "AdamWOptimizer";
  algorithm_ = is_adamw ? Algorithm::adam : Algorithm::sgd;
  if (is_adamw) settings_ = adamw_settings(*update);
  check_inputs(model.graph, is_adamw);
}

std::optional<UpdateRule> OptimizerModel::rule() const {
  if (clips_gradients()) return std::nullopt;
  return OptimizerPass(algorithm_, {settings_}).rule();
}

void OptimizerModel::step(double rate, std::int64_t step, std::span<const Tensor> parameters,
                          std::span<const Tensor> gradients, std::span<const std::vector<Tensor>> states,
                          double gradient_scale) const {
  const OptimizerPass pass(algorithm_, {settings_});
  if (max_norm_) scale_in_place(gradients, clip_factor(gradients, *max_norm_, gradient_scale));
  pass.run({.rate = rate, .step = step, .gradient_scale = gradient_scale}, parameters, gradients, states);
}

}  // namespace backpass
