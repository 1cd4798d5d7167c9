#include "onnx_io/atomic_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "backpass/error.hpp"

namespace backpass::onnx_io {
namespace {

/// Not taken by anybody in this process; O_EXCL guards against the others.
std::string temporary_name(const std::filesystem::path& destination) {
  static std::atomic<unsigned> counter = 0;
  return concat(".", destination.filename().string(), ".", ::getpid(), ".", counter++, ".tmp");
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path destination) : destination_(std::move(destination)) {
  if (std::filesystem::is_directory(destination_)) fail("[file '", destination_.string(), "'] is a folder");
  do {
    temporary_ = destination_.parent_path() / temporary_name(destination_);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EEXIST);
  if (descriptor_ < 0) fail_with_errno("cannot create a file beside it");
  keep_permissions();
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(std::string_view bytes) {
  constexpr std::size_t largest = std::size_t{1} << 30;  // one call takes less than 2 GiB
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), std::min(bytes.size(), largest));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_with_errno("cannot write");
    bytes.remove_prefix(static_cast<std::size_t>(written));
    offset_ += static_cast<std::uint64_t>(written);
  }
}

void AtomicFile::pad_to(std::uint64_t offset) {
  ensure(offset >= offset_, "padding of '", destination_.string(), "' to ", offset, " from ", offset_);
  write(std::string(offset - offset_, '\0'));
}

void AtomicFile::finish() {
  if (::fsync(descriptor_) != 0) fail_with_errno("cannot write");
  if (::close(std::exchange(descriptor_, -1)) != 0) fail_with_errno("cannot write");
}

void AtomicFile::publish() {
  ensure(descriptor_ < 0, "publish() of an unfinished file");
  if (::rename(temporary_.c_str(), destination_.c_str()) != 0) fail_with_errno("cannot replace");
  temporary_.clear();
  const auto folder = destination_.has_parent_path() ? destination_.parent_path() : std::filesystem::path(".");
  const int folder_descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_descriptor < 0) return;  // a folder may be writable and not readable; the rename stands
  ::fsync(folder_descriptor);
  ::close(folder_descriptor);
}

void AtomicFile::keep_permissions() const {
  struct stat status {};
  if (::stat(destination_.c_str(), &status) == 0) ::fchmod(descriptor_, status.st_mode & 0777);
}

void AtomicFile::fail_with_errno(std::string_view what) const {
  fail("[file '", destination_.string(), "'] ", what, ": ", std::strerror(errno));
}

}  // namespace backpass::onnx_io
