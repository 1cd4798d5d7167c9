#include <cmath>
#include <optional>

#include "graph/op.hpp"
#include "passes/list.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

bool is_real_constant(const Value* v) {
  return v != nullptr && v->constant &&
         (v->constant->dtype() == DType::float32 || v->constant->dtype() == DType::float64);
}

bool is_inference_norm(const Node& node) {
  if (!node.domain.empty() || node.op != "BatchNormalization" || node.attr_int("training_mode", 0) != 0) return false;
  if (node.inputs.size() != 5) return false;
  for (std::size_t i = 1; i < node.outputs.size(); ++i) {
    if (node.outputs[i] != nullptr) return false;
  }
  for (std::size_t i = 1; i < 5; ++i) {
    if (!is_real_constant(node.inputs[i])) return false;
  }
  return true;
}

/// y = factor * x + offset, per channel.
struct Affine {
  std::vector<double> factor, offset;
};

Affine affine_of(const Node& norm) {
  std::vector<double> scale = norm.inputs[1]->constant->to_doubles();
  std::vector<double> bias = norm.inputs[2]->constant->to_doubles();
  std::vector<double> mean = norm.inputs[3]->constant->to_doubles();
  std::vector<double> variance = norm.inputs[4]->constant->to_doubles();
  double epsilon = norm.attr_float("epsilon", 1e-5F);
  Affine result;
  for (std::size_t i = 0; i < scale.size(); ++i) {
    result.factor.push_back(scale[i] / std::sqrt(variance[i] + epsilon));
    result.offset.push_back(bias[i] - mean[i] * result.factor.back());
  }
  return result;
}

Tensor scaled_weights(const Tensor& w, const Affine& a) {
  Tensor result(w.dtype(), w.dims());
  std::int64_t size = w.size() / static_cast<std::int64_t>(a.factor.size());
  visit_real(w.dtype(), [&]<class T>() {
    for (std::int64_t i = 0; i < w.size(); ++i) {
      result.as<T>()[i] = static_cast<T>(w.as<T>()[i] * a.factor[static_cast<std::size_t>(i / size)]);
    }
  });
  return result;
}

Tensor new_bias(DType dtype, const Value* old, const Affine& a) {
  std::vector<double> values = old != nullptr ? old->constant->to_doubles() : std::vector<double>(a.factor.size(), 0.0);
  Tensor result(dtype, {static_cast<std::int64_t>(values.size())});
  visit_real(dtype, [&]<class T>() {
    for (std::size_t i = 0; i < values.size(); ++i) {
      result.as<T>()[i] = static_cast<T>(values[i] * a.factor[i] + a.offset[i]);
    }
  });
  return result;
}

/// The convolution that feeds the normalisation and nothing else.
Node* foldable_conv(const Graph& graph, const Node& norm) {
  Value* x = norm.inputs[0];
  Node* conv = x->producer;
  if (conv == nullptr || !conv->domain.empty() || conv->op != "Conv" || graph.use_count(x) != 1) return nullptr;
  if (!is_real_constant(conv->input(1)) || (conv->input(2) != nullptr && !is_real_constant(conv->input(2)))) {
    return nullptr;
  }
  const Tensor& w = *conv->input(1)->constant;
  if (w.rank() < 3 || w.dims()[0] == 0 || w.dims()[0] != norm.inputs[1]->constant->size()) return nullptr;
  return conv;
}

}  // namespace

void fold_batch_norm(Graph& graph, Reports& reports) {
  std::vector<Node*> nodes = graph.nodes();
  for (Node* norm : nodes) {
    if (!is_inference_norm(*norm)) continue;
    Node* conv = foldable_conv(graph, *norm);
    if (conv == nullptr) continue;
    Affine affine = affine_of(*norm);
    const Value* w = conv->input(1);
    Value* weights = graph.add_constant(w->name, scaled_weights(*w->constant, affine));
    Value* bias = graph.add_constant(norm->inputs[2]->name, new_bias(w->constant->dtype(), conv->input(2), affine));
    reports.push_back({.node = norm->label(),
                       .what = "folded " + norm->label() + " into " + conv->label(),
                       .why = "a factor and an offset per channel fit into weights and bias",
                       .operations_saved = elements_of(*norm->output(0)),
                       .bytes_saved = bytes_of(conv->output(0))});
    std::map<std::string, Attribute, std::less<>> attributes = conv->attributes;
    std::string name = conv->name;
    graph.rewrite(*norm, "", "Conv", {conv->input(0), weights, bias});
    norm->attributes = std::move(attributes);
    norm->name = std::move(name);
    norm->outputs.resize(1);
  }
  graph.remove_dead_nodes();
}

}  // namespace backpass
