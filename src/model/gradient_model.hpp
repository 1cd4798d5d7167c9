// A model extended by the gradients of some of its values: what backpass::grad does once the model is read.
#pragma once

#include <vector>

#include "backpass/gradient.hpp"
#include "onnx_io/proto.hpp"

namespace backpass {

onnx_io::ModelProto gradient_model(const onnx_io::ModelProto& model, const GradientRequest& request);

std::vector<Problem> gradient_problems(const onnx_io::ModelProto& model, const GradientRequest& request);

}  // namespace backpass
