// ModelProto -> bytes or files. Reading what was written gives the same model; see proto.hpp for what is normalised.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "onnx_io/proto.hpp"

namespace backpass::onnx_io {

struct WriteOptions {
  /// Initializers and attribute tensors of at least this many bytes go to `<file name>.data` beside the model; negative
  /// keeps everything inline (a model over 2 GiB is then refused with the advice to set this). Strings, sparse tensors
  /// and the bodies of functions always stay inline, since the onnx package looks for them there only.
  std::int64_t external_data_threshold = -1;
};

/// Serializes with all tensor data inline, as raw_data. The same model gives the same bytes.
std::string write_model(const ModelProto&);

/// Writes to a temporary name in the same folder, fsyncs and renames: the previous file is intact until the new one is
/// complete, whatever happens. Weights go from where they are (a mapped file, say) to the disk without a copy in
/// memory, and writing over the very files the model was read from is safe: the mapped ones live on until the model is
/// dropped. With external data there are two files and so two renames, the data's first: only a crash in the instant
/// between them leaves the old model with the new data. Throws InvalidInput for a tensor whose data does not match its
/// shape and for what the file system refuses.
void write_model(const ModelProto&, const std::filesystem::path& file, const WriteOptions& = {});

}  // namespace backpass::onnx_io
