// From a model with a loss to the pair of models that training runs on, in the layout of ONNX Runtime's artifacts:
//
//   training: user inputs, parameters, `<p>_grad.accumulation.buffer` per trainable p, `lazy_reset_grad`
//             -> loss and other outputs, `<p>_grad.accumulation.out` per trainable p
//   eval:     user inputs, parameters -> loss and other outputs
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.hpp"
#include "onnx_io/proto.hpp"

namespace backpass {

struct TrainingRequest {
  std::vector<std::string> requires_grad;  ///< initializers or graph inputs
  std::vector<std::string> frozen;         ///< initializers that become parameters without a gradient
  std::vector<std::string> outputs;        ///< the scalar loss first, then what else training and evaluation return
};

struct TrainingModels {
  onnx_io::ModelProto training;
  onnx_io::ModelProto eval;
};

/// Running statistics of batch normalisations that are parameters are written back to them by the training model.
/// Throws listing every problem: unknown names, a loss that is no scalar, operators without a gradient.
TrainingModels build_training_models(const onnx_io::ModelProto& model, const TrainingRequest& request);

/// The first of them alone: outputs may be some that there are in training only.
onnx_io::ModelProto build_training_model(const onnx_io::ModelProto& model, const TrainingRequest& request);

/// Initializers that hold running mean and variance of batch normalisations in training mode: they change while
/// training, so they belong among the frozen parameters.
std::vector<std::string> running_statistics(const onnx_io::ModelProto& model);

/// Appends what adds `value` to `sum`, an input, in place, or overwrites it where `overwrite` is true. Its flag, which
/// is named after `name`, becomes an output and is returned.
Value* add_accumulator(Graph& graph, Value* sum, Value* value, Value* overwrite, const std::string& name);

inline constexpr std::string_view kBufferSuffix = "_grad.accumulation.buffer";
inline constexpr std::string_view kAccumulatedSuffix = "_grad.accumulation.out";
inline constexpr std::string_view kResetFlag = "lazy_reset_grad";

}  // namespace backpass
