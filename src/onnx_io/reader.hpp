// Bytes -> ModelProto. Everything is checked before it is believed.
//
// A damaged or hostile file gives InvalidInput whose message names the file and, where it applies, the tensor,
// attribute or field; an IR version outside the range below gives Unsupported. What is checked here is that every
// message is well formed: element types exist, shapes do not overflow, each tensor has exactly the bytes its shape asks
// for, an attribute's value is of the kind it declares. Unknown fields are skipped. What the graph means (names,
// cycles, operators) is the importer's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

#include "onnx_io/proto.hpp"

namespace backpass::onnx_io {

inline constexpr std::int64_t kOldestIrVersion = 3;
inline constexpr std::int64_t kNewestIrVersion = 14;  ///< onnx 1.23

/// Bounds on hostile input. A model beyond one of them is refused with InvalidInput naming the bound.
struct ReadLimits {
  int max_depth = 64;                      ///< nesting of graphs inside attributes, and of types inside types
  std::int64_t max_nodes = 4'000'000;      ///< over all graphs and functions
  std::int64_t max_messages = 50'000'000;  ///< nodes, attributes, tensors, types, dimensions, ... together
  std::int64_t max_tensor_rank = 64;
};

/// Maps the file and reads it. External data is mapped too; its location must stay inside the model's folder (no
/// absolute path, no "..", no symbolic link leading out).
ModelProto read_model(const std::filesystem::path& file, const ReadLimits& = {});

/// Reads a serialized model. `owner` keeps `bytes` alive for as long as any part of the result; when null, the bytes
/// are copied once. `folder` is where external data is looked for; empty means a model that needs external data is
/// refused.
ModelProto read_model(std::string_view bytes, std::shared_ptr<const void> owner,
                      const std::filesystem::path& folder = {}, const ReadLimits& = {});

/// Reads one serialized TensorProto (the .pb files of ONNX's backend tests). The bytes are copied once. SequenceProto
/// and OptionalProto, the other kinds such a file may hold, are read by the Python layer.
TensorProto read_tensor(std::string_view bytes);

}  // namespace backpass::onnx_io
