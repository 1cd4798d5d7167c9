// A model as it evaluates, whatever mode it was exported in.
#pragma once

#include "onnx_io/proto.hpp"

namespace backpass {

/// Dropout passes its input on, batch normalisation uses its running statistics; in subgraphs and functions, too.
void make_inference_form(onnx_io::ModelProto& model);

}  // namespace backpass
