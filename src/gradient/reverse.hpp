// Reverse mode over a Graph: adds the nodes that compute gradients, in terms of ordinary operators.
//
// Names follow ONNX Runtime's training graphs, so tools made for those keep working: the gradient of `w` is `w_grad`,
// contributions `w_grad_0`, `w_grad_1` are joined by the node `AccumulateGrad_w_grad`, nodes emitted for the forward
// node `conv1` are `conv1_Grad/...`.
#pragma once

#include <span>
#include <vector>

#include "backpass/problem.hpp"
#include "graph/graph.hpp"

namespace backpass {

struct GradientOptions {
  /// Only operators of the standard: for models that other runtimes will run.
  bool standard_only = false;
};

/// Everything that stands between `outputs` and their gradients with respect to `wrt`: operators without a rule,
/// values nothing differentiable reaches. Empty means add_gradients will succeed.
std::vector<Problem> gradient_problems(const Graph& graph, std::span<Value* const> outputs, std::span<Value* const> wrt,
                                       const GradientOptions& options = {});

/// Appends nodes computing d(sum over k of seeds[k] . outputs[k]) / d(wrt). A null seed stands for ones. Returns one
/// value per entry of `wrt`, of its type; zeros where the outputs do not depend on it.
/// InvalidInput or Unsupported, listing every problem, when there is one.
std::vector<Value*> add_gradients(Graph& graph, std::span<Value* const> outputs, std::span<Value* const> seeds,
                                  std::span<Value* const> wrt, const GradientOptions& options = {});

}  // namespace backpass
