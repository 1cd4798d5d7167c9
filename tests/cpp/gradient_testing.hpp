// A small graph in float64, its gradients, and central differences to judge every element of them by.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "gradient/reverse.hpp"
#include "gradient/rule.hpp"
#include "pass_testing.hpp"

namespace backpass {

struct GradientFixture : PassFixture {
  Value* input(Dims dims, std::vector<std::string> symbols = {}) {
    return PassFixture::input(std::move(dims), DType::float64, std::move(symbols));
  }

  Tensor& fed(const Value* input) {
    auto it = std::find(graph.inputs.begin(), graph.inputs.end(), input);
    return feeds.at(static_cast<std::size_t>(it - graph.inputs.begin())).tensor;
  }

  /// Appends the gradients of the sum of the outputs so far, weighted by random numbers, to the outputs.
  std::vector<Value*> differentiate(const std::vector<Value*>& wrt, const GradientOptions& options = {}) {
    const std::vector<Value*> forward = graph.outputs;
    std::vector<Value*> seeds;
    for (const Tensor& y : run()) {
      weights_.push_back(random(y.dims(), DType::float64));
      seeds.push_back(b.constant(weights_.back()));
    }
    std::vector<Value*> gradients = add_gradients(graph, forward, seeds, wrt, options);
    graph.outputs.insert(graph.outputs.end(), gradients.begin(), gradients.end());
    EXPECT_TRUE(verify(graph).empty()) << verify(graph).front();
    return gradients;
  }

  /// Differentiates, and compares every element with the slope it stands for.
  void expect_right_gradients(const std::vector<Value*>& wrt, const GradientOptions& options = {}) {
    differentiate(wrt, options);
    const std::vector<Tensor> results = run();
    for (std::size_t i = 0; i < wrt.size(); ++i) {
      const Tensor& gradient = results.at(results.size() - wrt.size() + i);
      ASSERT_EQ(gradient.dims(), fed(wrt[i]).dims());
      const std::vector<double> got = gradient.to_doubles();
      for (std::size_t j = 0; j < got.size(); ++j) {
        ASSERT_NEAR(got[j], slope(wrt[i], j), 1e-7) << "of " << wrt[i]->name << " at " << j;
      }
    }
  }

 private:
  double weighted_sum() {
    const std::vector<Tensor> results = run();
    double sum = 0;
    for (std::size_t k = 0; k < weights_.size(); ++k) {
      const std::vector<double> y = results[k].to_doubles();
      const std::vector<double> w = weights_[k].to_doubles();
      for (std::size_t j = 0; j < y.size(); ++j) sum += w[j] * y[j];
    }
    return sum;
  }

  double slope(const Value* wrt, std::size_t j) {
    constexpr double kStep = 1e-5;
    double& element = fed(wrt).as<double>()[j];
    const double before = element;
    element = before + kStep;
    const double above = weighted_sum();
    element = before - kStep;
    const double below = weighted_sum();
    element = before;
    return (above - below) / (2 * kStep);
  }

  std::vector<Tensor> weights_;
};

/// What a rule sees of a node whose inputs all want gradients, outside of any differentiation.
struct RuleFixture : GradientFixture {
  std::set<const Value*> active;

  GradientContext context(const Value* y, std::vector<Value*> output_gradients) {
    const Node& node = *y->producer;
    active.insert(node.inputs.begin(), node.inputs.end());
    return {b, node, std::move(output_gradients), active};
  }

  /// The contents of one value of the graph.
  std::vector<double> contents(Value* v) {
    graph.outputs = {v};
    return run().at(0).to_doubles();
  }
};

}  // namespace backpass
