// A file that appears all at once or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "backpass/error.hpp"

namespace backpass::onnx_io {

/// What the system refused, with its number for it.
class FileError : public InvalidInput {
 public:
  FileError(const std::string& message, int number) : InvalidInput(message), code(number) {}
  int code;  ///< of errno
};

/// Written under a temporary name in the destination's folder:
///
///     AtomicFile file("model.onnx");
///     file.write(bytes);
///     file.finish();    // on the disk, whole
///     file.publish();   // under its own name; what had that name is gone, but stays readable for whoever has it open
///
/// Without publish() the temporary file is removed; that of a process that was killed, by the next AtomicFile of the
/// same destination. What cannot be done throws FileError naming the file and the reason.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path destination);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::string_view bytes);
  /// Zeros up to this offset from the start; many of them are a hole, which takes no space.
  void pad_to(std::uint64_t offset);
  void finish();
  /// True when the new name is known to be on the disk, too.
  bool publish();

 private:
  void keep_permissions() const;
  [[noreturn]] void fail_with_errno(std::string_view what) const;

  std::filesystem::path destination_;
  std::filesystem::path temporary_;  ///< empty once published
  int descriptor_ = -1;
  std::uint64_t offset_ = 0;
  bool is_finished_ = false;
};

}  // namespace backpass::onnx_io
