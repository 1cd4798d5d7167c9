// A small graph, what it computes, and the check that a pass does not change that.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "graph/builder.hpp"
#include "graph/graph.hpp"
#include "plan/lower.hpp"
#include "runtime/executable.hpp"
#include "runtime/interpreter.hpp"

namespace backpass {

struct PassFixture {
  Graph graph;
  Builder b{graph, nullptr, "t"};
  std::vector<RuntimeValue> feeds;
  std::mt19937 generator{7};

  Tensor random(Dims dims, DType dtype = DType::float32) {
    std::uniform_real_distribution<double> uniform(-1, 1);
    Tensor t(dtype, std::move(dims));
    for (std::int64_t i = 0; i < t.size(); ++i) {
      if (dtype == DType::float32) {
        t.as<float>()[i] = static_cast<float>(uniform(generator));
      } else {
        t.as<double>()[i] = uniform(generator);
      }
    }
    return t;
  }

  /// A graph input; `symbols` name extents that the graph does not know.
  Value* input(Dims dims, DType dtype = DType::float32, std::vector<std::string> symbols = {}) {
    Shape shape = to_shape(dims);
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      if (!symbols[i].empty()) shape[i] = Dim::symbol(symbols[i]);
    }
    Value* v = graph.add_value("x", Type::tensor(dtype, std::move(shape)));
    graph.inputs.push_back(v);
    feeds.emplace_back(random(std::move(dims), dtype));
    return v;
  }

  Value* weights(Dims dims, DType dtype = DType::float32) { return b.constant(random(std::move(dims), dtype)); }

  void output(Value* v) { graph.outputs.push_back(v); }

  std::vector<Tensor> run() {
    std::vector<Tensor> results;
    for (const RuntimeValue& v : interpret(graph, feeds)) results.push_back(v.tensor);
    return results;
  }

  std::vector<Tensor> run_planned() {
    std::unique_ptr<Program> program = make_program(graph);
    Executable executable(*program, 1, nullptr);
    std::vector<Tensor> results;
    for (const RuntimeValue& v : executable.run(feeds)) results.push_back(v.tensor);
    return results;
  }

  std::vector<std::string> operators() const {
    std::vector<std::string> names;
    for (const Node* node : graph.nodes()) names.push_back(node->op);
    return names;
  }

  /// Runs the pass; outputs must stay the same within `tolerance`. Returns the operators left.
  template <class Pass>
  std::vector<std::string> apply(Pass pass, double tolerance = 1e-5) {
    std::vector<Tensor> before = run();
    std::vector<std::string> names;
    for (const Value* v : graph.outputs) names.push_back(v->name);
    pass(graph, reports);
    EXPECT_TRUE(verify(graph).empty()) << verify(graph).front();
    for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(graph.outputs[i]->name, names[i]);
    for (const std::vector<Tensor>& after : {run(), run_planned()}) {
      for (std::size_t i = 0; i < before.size(); ++i) expect_near(before[i], after[i], tolerance);
    }
    return operators();
  }

  static void expect_near(const Tensor& a, const Tensor& b, double tolerance) {
    ASSERT_EQ(a.dims(), b.dims());
    ASSERT_EQ(a.dtype(), b.dtype());
    std::vector<double> x = a.to_doubles();
    std::vector<double> y = b.to_doubles();
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], tolerance * (1 + std::abs(x[i]))) << "at " << i;
  }

  Reports reports;
};

}  // namespace backpass
