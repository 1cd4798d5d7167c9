// The graph of a training or eval model as its file has it, and what passes make of it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "graph/graph.hpp"
#include "onnx_io/proto.hpp"
#include "passes/manager.hpp"
#include "training/take_apart.hpp"
#include "training/unwrap.hpp"

namespace backpass {

class StepSource {
 public:
  /// Inputs for which `is_parameter` holds are parameters. Throws listing every problem.
  StepSource(const onnx_io::ModelProto& model, const std::function<bool(const std::string&)>& is_parameter,
             bool optimize);

  /// Outputs are the user's, then gradients, then new values of statistics.
  const Graph& graph() const { return *graph_; }
  const Unwrapped& names() const { return names_; }
  std::size_t user_outputs() const { return user_outputs_.size(); }
  const std::vector<std::string>& user_output_names() const { return user_outputs_; }
  bool is_parameter(const Value* input) const;

  /// What passes that work before differentiation can work on; null: nothing, and refusal() says why.
  const Graph* forward() const;
  const Report& refusal() const { return forward_.refusal; }

  /// A copy as these passes leave it. Where they find nothing to do before differentiation, gradients are those that
  /// the file has.
  std::unique_ptr<Graph> rewritten(PassManager& passes) const;

  /// A graph that rewritten() gave, as a file: with_accumulators in the layout of training models, else with gradients
  /// and new values behind the outputs.
  onnx_io::ModelProto written(const Graph& graph) const;
  /// What these passes leave before differentiation, with its gradients, in the layout of training models. Unsupported
  /// where the gradients of the file have to stay.
  onnx_io::ModelProto training_model(PassManager& passes) const;

 private:
  std::int64_t opset_;
  std::unique_ptr<Graph> graph_;
  std::set<std::string> parameters_;
  Unwrapped names_;
  std::vector<std::string> user_outputs_;
  ForwardPart forward_;
};

}  // namespace backpass
