#include "training/optimizer_model.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "expect_error.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

using onnx_io::AttributeProto;
using onnx_io::ModelProto;
using onnx_io::NodeProto;
using Doubles = std::vector<double>;

AttributeProto attribute(std::string name, float value) {
  AttributeProto a;
  a.name = std::move(name);
  a.type = AttributeProto::Type::float_;
  a.f = value;
  return a;
}

AttributeProto attribute(std::string name, std::int64_t value) {
  AttributeProto a;
  a.name = std::move(name);
  a.type = AttributeProto::Type::int_;
  a.i = value;
  return a;
}

NodeProto node(std::string op, std::vector<AttributeProto> attributes = {}) {
  NodeProto n;
  n.op_type = std::move(op);
  n.name = "update";
  n.domain = "com.microsoft";
  n.attribute = std::move(attributes);
  return n;
}

ModelProto model_of(std::vector<NodeProto> nodes, std::size_t inputs) {
  ModelProto model;
  model.graph.node = std::move(nodes);
  for (const char* name :
       {"learning_rate", "step", "params", "gradients", "first_order_moments", "second_order_moments"}) {
    if (model.graph.input.size() == inputs) break;
    model.graph.input.emplace_back().name = name;
  }
  return model;
}

Tensor doubles(const Doubles& values) {
  return Tensor::from<double>(DType::float64, {static_cast<std::int64_t>(values.size())}, values);
}

TEST(OptimizerModel, SgdFollowsTheSlope) {
  const OptimizerModel optimizer(model_of({node("SGDOptimizerV2")}, 4));
  EXPECT_TRUE(optimizer.state_names().empty());
  const std::vector<Tensor> w = {doubles({1, 2, 3}), doubles({-1})};
  const std::vector<Tensor> g = {doubles({4, 0, -2}), doubles({8})};
  optimizer.step(0.25, 1, w, g, {});
  EXPECT_EQ(w[0].to_doubles(), (Doubles{0, 2, 3.5}));
  EXPECT_EQ(w[1].to_doubles(), Doubles{-3});
  EXPECT_EQ(g[0].to_doubles(), (Doubles{4, 0, -2}));
}

TEST(OptimizerModel, EveryElementOfALargeTensorTakesItsStep) {
  const OptimizerModel optimizer(model_of({node("SGDOptimizerV2")}, 4));
  const std::vector<Tensor> w = {doubles(Doubles(100'003, 3))};
  const std::vector<Tensor> g = {doubles(Doubles(100'003, 1))};
  optimizer.step(0.5, 1, w, g, {});
  EXPECT_EQ(w[0].to_doubles(), Doubles(100'003, 2.5));
}

TEST(OptimizerModel, ClippingScalesAllGradientsTogether) {
  const NodeProto clip = node("InplaceClipGradNorm", {attribute("max_norm", 2.5F)});
  const OptimizerModel optimizer(model_of({clip, node("SGDOptimizerV2")}, 4));
  const std::vector<Tensor> w = {doubles({0}), doubles({0})};
  std::vector<Tensor> g = {doubles({3}), doubles({4})};  // of norm 5
  optimizer.step(1, 1, w, g, {});
  EXPECT_NEAR(w[0].to_doubles()[0], -1.5, 1e-6);
  EXPECT_NEAR(w[1].to_doubles()[0], -2, 1e-6);
  const std::vector<Tensor> small = {doubles({0.25}), doubles({-0.5})};
  optimizer.step(1, 2, w, small, {});
  EXPECT_EQ(small[0].to_doubles(), Doubles{0.25});
}

/// AdamW as Loshchilov and Hutter write it, for one weight.
struct Adam {
  double alpha, beta, epsilon, decay;
  bool decay_first;
  double w, m = 0, v = 0;

  void step(double rate, int t, double g) {
    if (decay_first) w -= rate * decay * w;
    m = alpha * m + (1 - alpha) * g;
    v = beta * v + (1 - beta) * g * g;
    const double unbias = std::sqrt(1 - std::pow(beta, t));
    const double root = decay_first ? std::sqrt(v) / unbias + epsilon : std::sqrt(v) + epsilon;
    const double scale = decay_first ? 1 : unbias;
    w -= rate * scale / (1 - std::pow(alpha, t)) * m / root;
    if (!decay_first) w -= rate * decay * w;
  }
};

TEST(OptimizerModel, AdamWDecaysBeforeOrAfterTheStep) {
  for (std::int64_t mode : {std::int64_t{0}, std::int64_t{1}}) {
    const OptimizerModel optimizer(model_of(
        {node("AdamWOptimizer", {attribute("alpha", 0.75F), attribute("beta", 0.875F), attribute("epsilon", 0.125F),
                                 attribute("weight_decay", 0.5F), attribute("adam_mode", mode)})},
        6));
    EXPECT_EQ(optimizer.state_names(), (std::vector<std::string>{"momentum0", "momentum1"}));
    const std::vector<Tensor> w = {doubles({2})};
    const std::vector<std::vector<Tensor>> states = {{doubles({0})}, {doubles({0})}};
    Adam wanted{0.75, 0.875, 0.125, 0.5, mode == 0, 2};
    for (int t = 1; t <= 4; ++t) {
      const double slope = t - 2.5;
      wanted.step(0.1, t, slope);
      optimizer.step(0.1, t, w, std::vector<Tensor>{doubles({slope})}, states);
      EXPECT_NEAR(w[0].to_doubles()[0], wanted.w, 1e-12) << "mode " << mode << ", step " << t;
      EXPECT_NEAR(states[0][0].to_doubles()[0], wanted.m, 1e-12);
      EXPECT_NEAR(states[1][0].to_doubles()[0], wanted.v, 1e-12);
    }
  }
}

std::vector<float> trained(int threads) {
  const ThreadScope scope(threads);
  const OptimizerModel optimizer(model_of({node("InplaceClipGradNorm"), node("AdamWOptimizer")}, 6));
  std::vector<Tensor> w, g;
  std::vector<std::vector<Tensor>> states(2);
  for (std::int64_t size : {3, 100'003, 1, 40'000}) {
    for (auto* tensors : {&w, &g, &states[0], &states[1]}) {
      Tensor& t = tensors->emplace_back(DType::float32, Dims{size});
      for (std::int64_t i = 0; i < size; ++i) {
        const bool is_state = tensors != &w && tensors != &g;
        t.as<float>()[i] = is_state ? 0 : std::sin(static_cast<float>(i + size));
      }
    }
  }
  for (int t = 1; t <= 3; ++t) optimizer.step(0.01, t, w, g, states);
  std::vector<float> result;
  for (const Tensor& t : w) result.insert(result.end(), t.as<float>(), t.as<float>() + t.size());
  return result;
}

TEST(OptimizerModel, TheNumberOfThreadsDoesNotMatter) { EXPECT_EQ(trained(1), trained(3)); }

TEST(OptimizerModel, WhatIsNoOptimizerIsRefused) {
  const std::vector<std::pair<ModelProto, std::string_view>> table = {
      {model_of({}, 6), "optimizer model: got no optimizer node, expected one AdamWOptimizer or SGDOptimizerV2"},
      {model_of({node("SGDOptimizerV2"), node("AdamWOptimizer")}, 6), "got more than one optimizer node"},
      {model_of({node("Adagrad")}, 6), "[Adagrad 'update'] in an optimizer model: expected AdamWOptimizer"},
      {model_of({node("AdamWOptimizer")}, 4), "inputs: got learning_rate, step, params, gradients; expected"},
      {model_of({node("SGDOptimizerV2")}, 6),
       "inputs: got learning_rate, step, params, gradients, first_order_moments"},
      {model_of({node("AdamWOptimizer", {attribute("adam_mode", std::int64_t{2})})}, 6),
       "adam_mode: got 2, expected 0 or 1"},
  };
  for (const auto& row : table) {
    expect_error<InvalidInput>([&] { OptimizerModel{row.first}; }, {row.second});
  }
}

}  // namespace
}  // namespace backpass
