// A float32 model that computes part of its values in bfloat16.
#pragma once

#include "onnx_io/proto.hpp"

namespace backpass {

/// Writes casts so that matrix products, convolutions and attention run in bfloat16, and what follows them and is not
/// sensitive (element-wise operators, moves of data) does, too. Losses, softmax, normalisations, reductions and all
/// other operators stay in float32, as do inputs, outputs and weights, which are cast where they are used: gradients of
/// weights are float32.
void autocast(onnx_io::ModelProto& model);

}  // namespace backpass
