// Initializers as inputs: what a training model does with its parameters.
#pragma once

#include <string>
#include <vector>

#include "onnx_io/proto.hpp"

namespace backpass {

/// Takes the named initializers out of the graph, in the graph's order, and declares them as inputs after the others
/// (unless they are declared already). Returns what was taken.
std::vector<onnx_io::TensorProto> move_to_inputs(onnx_io::GraphProto& graph, const std::vector<std::string>& names);

/// Declared type of an initializer.
onnx_io::ValueInfoProto info_of(const onnx_io::TensorProto& tensor);

/// Version of the default domain a model asks for; 1 when it says nothing.
std::int64_t opset_of(const onnx_io::ModelProto& model);

}  // namespace backpass
