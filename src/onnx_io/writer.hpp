// ModelProto -> bytes or files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "onnx_io/proto.hpp"

namespace backpass::onnx_io {

struct WriteOptions {
  /// Tensors of at least this many bytes go to `<file name>.data` beside the model; negative keeps everything inline
  /// (a model over 2 GiB is then refused with the advice to set this).
  std::int64_t external_data_threshold = -1;
};

/// Serializes with all tensor data inline.
std::string write_model(const ModelProto&);

/// Writes to a temporary name in the same folder, fsyncs and renames: the previous file is intact until the new one is
/// complete, whatever happens.
void write_model(const ModelProto&, const std::filesystem::path& file, const WriteOptions& = {});

}  // namespace backpass::onnx_io
