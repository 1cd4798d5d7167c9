// The gradient of any ONNX model, as another ONNX model.
//
//   std::string with_gradients = backpass::grad("model.onnx", {.wrt = {"weight"}});
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "backpass/problem.hpp"

namespace backpass {

struct GradientRequest {
  std::vector<std::string> wrt;      ///< inputs, initializers or intermediate values
  std::vector<std::string> outputs;  ///< of the model, to be differentiated; empty: all that hold floats
  /// The gradients that arrive at the outputs become inputs `<output>_grad`; otherwise they are ones, that is, the sum
  /// of all elements is differentiated.
  bool seeds_as_inputs = false;
  /// Only operators of the standard, so that any ONNX runtime can run the result. Otherwise also those that ONNX
  /// Runtime's training graphs use.
  bool standard_only = true;
};

/// A serialized model whose outputs are the requested ones followed by `<name>_grad` for each entry of `wrt`, of its
/// shape (`<name>_grad_1` when that name is taken, as in a model that is itself a gradient). Inputs and initializers
/// stay what they were. Throws listing every problem.
std::string grad(const std::filesystem::path& model, const GradientRequest& request);
std::string grad(std::string_view model, const GradientRequest& request);

/// What grad would refuse, and nothing else.
std::vector<Problem> check_gradients(const std::filesystem::path& model, const GradientRequest& request);
std::vector<Problem> check_gradients(std::string_view model, const GradientRequest& request);

}  // namespace backpass
