// Tensors of a file as tensors of the engine; declared in import.hpp but for this one.
#pragma once

#include "backpass/tensor.hpp"
#include "onnx_io/proto.hpp"

namespace backpass {

/// All elements of a sparse tensor, zeros included. Indices are checked; at most 2^31 elements.
Tensor to_dense(const onnx_io::SparseTensorProto& proto);

}  // namespace backpass
