// Training models with everything left out that need not be computed, whatever the data: for files.
#pragma once

#include <functional>
#include <string>

#include "backpass/session.hpp"
#include "onnx_io/proto.hpp"
#include "training/step_source.hpp"

namespace backpass {

/// What passes before differentiation leave, those that data decide on among them, with its gradients, in the layout of
/// training models. Unsupported where the gradients that the model came with have to stay.
onnx_io::ModelProto rewritten_model(const StepSource& source, const SessionOptions& options);

onnx_io::ModelProto rewritten_model(const onnx_io::ModelProto& training,
                                    const std::function<bool(const std::string&)>& is_parameter);

}  // namespace backpass
