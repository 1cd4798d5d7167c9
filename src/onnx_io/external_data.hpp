// Tensor data kept outside the model: finds, checks and maps it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "onnx_io/mapped_file.hpp"
#include "onnx_io/proto.hpp"

namespace backpass::onnx_io {

/// The files beside one model. Each is mapped once, however many tensors it holds.
class ExternalData {
 public:
  /// `folder` is the only place files are taken from; empty refuses all external data.
  explicit ExternalData(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// The bytes that TensorProto.external_data describes. `size` is what the tensor's shape asks for, `elements` says so
  /// in words ("4 float32 elements"), `context` opens every message. A location that is absolute, contains "..", or
  /// leads out of the folder through a symbolic link is refused, and so is a range that is not inside the file.
  Bytes find(const StringPairs& entries, std::size_t size, std::string_view elements, std::string_view context);

 private:
  std::filesystem::path resolve(const std::string& location, std::string_view context) const;
  std::shared_ptr<const MappedFile> file(const std::string& location, std::string_view context);

  std::filesystem::path folder_;
  std::map<std::string, std::shared_ptr<const MappedFile>> by_location_;
  std::map<std::filesystem::path, std::shared_ptr<const MappedFile>> by_path_;  ///< after following links
};

}  // namespace backpass::onnx_io
