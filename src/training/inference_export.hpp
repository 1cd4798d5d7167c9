// The model a user takes home after training.
#pragma once

#include <span>
#include <string>

#include "backpass/checkpoint.hpp"
#include "onnx_io/proto.hpp"

namespace backpass {

/// The eval model cut down to the named values, with the state's parameters as initializers and everything in
/// inference form. Throws for names it does not have and for a nominal state.
onnx_io::ModelProto inference_model(const onnx_io::ModelProto& eval, const CheckpointState& state,
                                    std::span<const std::string> outputs);

}  // namespace backpass
