// Models that are files or bytes.
#pragma once

#include "backpass/training.hpp"
#include "onnx_io/proto.hpp"
#include "onnx_io/reader.hpp"

namespace backpass {

inline onnx_io::ModelProto read_source(const ModelSource& source) {
  if (!source.bytes.empty()) return onnx_io::read_model(source.bytes, nullptr);
  return onnx_io::read_model(source.path);
}

}  // namespace backpass
