#include "training/optimizer_model.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "ops/optimizers/clip_gradients.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

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

AdamW adamw_settings(const NodeProto& node) {
  AdamW s;
  s.alpha = number(node, "alpha", 0.9F);
  s.beta = number(node, "beta", 0.999F);
  s.epsilon = number(node, "epsilon", 1e-8F);
  s.weight_decay = number(node, "weight_decay", 1e-2F);
  s.correct_bias = integer(node, "correct_bias", 1) != 0;
  const std::int64_t mode = integer(node, "adam_mode", 0);
  if (mode != 0 && mode != 1) fail("optimizer model: adam_mode: got ", mode, ", expected 0 or 1");
  s.decay_first = mode == 0;
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

constexpr std::int64_t kPiece = 1 << 14;

/// A stretch of one tensor: all tensors together are cut into these, so that small ones share the threads.
struct Piece {
  std::size_t tensor;
  std::int64_t begin, count;
};

std::vector<Piece> pieces_of(std::span<const Tensor> tensors) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::int64_t at = 0; at < tensors[i].size(); at += kPiece) {
      pieces.push_back({i, at, std::min(kPiece, tensors[i].size() - at)});
    }
  }
  return pieces;
}

template <class T>
T* at(const Tensor& tensor, const Piece& piece) {
  Tensor handle = tensor;
  return handle.as<T>() + piece.begin;
}

template <class F>
void for_each_piece(std::span<const Tensor> tensors, const F& f) {
  const std::vector<Piece> pieces = pieces_of(tensors);
  parallel_for(static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[static_cast<std::size_t>(i)];
      visit_real(tensors[piece.tensor].dtype(), [&]<class T>() { f.template operator()<T>(piece); });
    }
  });
}

}  // namespace

OptimizerModel::OptimizerModel(const onnx_io::ModelProto& model) {
  const NodeProto* update = nullptr;
  for (const NodeProto& node : model.graph.node) {
    if (node.op_type == "AdamWOptimizer" || node.op_type == "SGDOptimizerV2") {
      if (update != nullptr) fail("optimizer model: got more than one optimizer node, expected exactly one");
      update = &node;
    } else if (node.op_type == "InplaceClipGradNorm") {
      clips_ = true;
      max_norm_ = number(node, "max_norm", 1);
    } else {
      fail("[", node.op_type, " '", node.name,
           "'] in an optimizer model: expected AdamWOptimizer, SGDOptimizerV2 or InplaceClipGradNorm");
    }
  }
  if (update == nullptr) fail("optimizer model: got no optimizer node, expected one AdamWOptimizer or SGDOptimizerV2");
  kind_ = update->op_type == "AdamWOptimizer" ? Kind::adamw : Kind::sgd;
  if (kind_ == Kind::adamw) settings_ = adamw_settings(*update);
  check_inputs(model.graph, kind_ == Kind::adamw);
}

std::vector<std::string> OptimizerModel::state_names() const {
  if (kind_ == Kind::sgd) return {};
  return {"momentum0", "momentum1"};
}

std::optional<UpdateRule> OptimizerModel::rule() const {
  if (clips_) return std::nullopt;
  UpdateRule rule{kind_ == Kind::sgd ? "SGDUpdate" : "AdamWUpdate", {}, state_names()};
  if (kind_ == Kind::sgd) return rule;
  rule.attributes.emplace("alpha", static_cast<float>(settings_.alpha));
  rule.attributes.emplace("beta", static_cast<float>(settings_.beta));
  rule.attributes.emplace("epsilon", static_cast<float>(settings_.epsilon));
  rule.attributes.emplace("weight_decay", static_cast<float>(settings_.weight_decay));
  rule.attributes.emplace("correct_bias", std::int64_t{settings_.correct_bias});
  rule.attributes.emplace("adam_mode", std::int64_t{!settings_.decay_first});
  return rule;
}

void OptimizerModel::clip(std::span<const Tensor> gradients) const {
  const double factor = clip_factor(gradients, max_norm_);
  if (factor == 1.0) return;
  for_each_piece(gradients, [&]<class T>(const Piece& piece) {
    T* g = at<T>(gradients[piece.tensor], piece);
    for (std::int64_t i = 0; i < piece.count; ++i) g[i] *= static_cast<T>(factor);
  });
}

void OptimizerModel::step(double rate, std::int64_t step, std::span<const Tensor> parameters,
                          std::span<const Tensor> gradients, std::span<const std::vector<Tensor>> states) const {
  ensure(gradients.size() == parameters.size() && states.size() == state_names().size(), "optimizer: tensor counts");
  if (clips_) clip(gradients);
  AdamW settings = settings_;
  settings.rate = rate;
  settings.step = static_cast<double>(step);
  for_each_piece(parameters, [&]<class T>(const Piece& piece) {
    T* w = at<T>(parameters[piece.tensor], piece);
    const T* g = at<T>(gradients[piece.tensor], piece);
    if (kind_ == Kind::sgd) return sgd_step(rate, piece.count, w, g, w);
    T* m = at<T>(states[0][piece.tensor], piece);
    T* v = at<T>(states[1][piece.tensor], piece);
    adamw_step(settings, piece.count, w, g, m, v, w, m, v);
  });
}

}  // namespace backpass
