// A file as read-only memory, backed by the page cache: a model larger than memory can be opened.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

namespace backpass::onnx_io {

/// Stays valid when the file is replaced by a rename (as writer.hpp does) or removed; truncating it in place while it
/// is mapped is the one thing no reader can survive.
class MappedFile {
 public:
  /// Throws InvalidInput, its message starting with `context`, unless `file` is a readable regular file. `follow_link`
  /// false also refuses a path whose last part is a symbolic link.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& file, std::string_view context,
                                                bool follow_link = true);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::string_view bytes() const { return {data_, size_}; }

 private:
  MappedFile(const char* data, std::size_t size) : data_(data), size_(size) {}

  const char* data_;
  std::size_t size_;
};

}  // namespace backpass::onnx_io
