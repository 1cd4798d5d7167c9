// Bytes -> ModelProto. Everything is checked before it is believed: see limits below.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

#include "onnx_io/proto.hpp"

namespace backpass::onnx_io {

/// Bounds on hostile input. A model beyond one of them is refused with InvalidInput naming the bound.
struct ReadLimits {
  int max_depth = 64;                            ///< nesting of graphs inside attributes, and of types inside types
  std::int64_t max_nodes = 4'000'000;            ///< over all graphs and functions
  std::int64_t max_tensor_rank = 64;
};

/// Maps the file and reads it. External data is mapped too; its location must stay inside the model's folder (no absolute
/// path, no "..", no symbolic link leading out).
ModelProto read_model(const std::filesystem::path& file, const ReadLimits& = {});

/// Reads a serialized model. `owner` keeps `bytes` alive for as long as any part of the result; when null, the bytes are
/// copied once. `folder` is where external data is looked for; empty means a model that needs external data is refused.
ModelProto read_model(std::string_view bytes, std::shared_ptr<const void> owner, const std::filesystem::path& folder = {},
                      const ReadLimits& = {});

/// Reads one serialized TensorProto (the .pb files of ONNX's backend tests).
TensorProto read_tensor(std::string_view bytes);

/// The same for the other value kinds a .pb file may hold: SequenceProto and OptionalProto are read by the Python layer.

}  // namespace backpass::onnx_io
