#include "onnx_io/atomic_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "backpass/error.hpp"

namespace backpass::onnx_io {
namespace {

/// Not taken by anybody in this process; O_EXCL guards against the others.
std::string temporary_name(const std::filesystem::path& destination) {
  static std::atomic<unsigned> counter = 0;
  return concat(".", destination.filename().string(), ".", ::getpid(), ".", counter++, ".tmp");
}

/// ".<destination>.<digits>.<digits>.tmp", `start` being the part up to the digits.
bool is_temporary_name(std::string_view name, std::string_view start) {
  constexpr std::string_view end = ".tmp";
  if (name.size() <= start.size() + end.size() || !name.starts_with(start) || !name.ends_with(end)) return false;
  const std::string_view middle = name.substr(start.size(), name.size() - start.size() - end.size());
  return middle.find_first_not_of("0123456789.") == std::string_view::npos;
}

/// Marks the file as being written for as long as it is open. False: somebody took it for a leftover before that.
bool lock_temporary(int descriptor) {
  struct stat status {};
  return ::flock(descriptor, LOCK_EX | LOCK_NB) == 0
             ? ::fstat(descriptor, &status) == 0 && status.st_nlink > 0
             : errno != EWOULDBLOCK;  // no locks on this file system: no cleaning
}

/// Temporary files of `destination` whose writer was killed: nobody holds their lock any more.
void remove_leftovers(const std::filesystem::path& destination) {
  const std::string start = concat(".", destination.filename().string(), ".");
  const auto folder = destination.has_parent_path() ? destination.parent_path() : std::filesystem::path(".");
  std::error_code stop;  // what cannot be read or removed stays
  for (std::filesystem::directory_iterator at(folder, stop), end; !stop && at != end; at.increment(stop)) {
    const std::string name = at->path().filename().string();
    if (!is_temporary_name(name, start)) continue;
    const int descriptor = ::open(at->path().c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0) continue;
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) ::unlink(at->path().c_str());
    ::close(descriptor);
  }
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path destination) : destination_(std::move(destination)) {
  if (std::filesystem::is_directory(destination_)) {
    throw FileError(concat("[file '", destination_.string(), "'] is a folder"), EISDIR);
  }
  remove_leftovers(destination_);
  do {
    if (descriptor_ >= 0) ::close(descriptor_);
    temporary_ = destination_.parent_path() / temporary_name(destination_);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ >= 0 ? !lock_temporary(descriptor_) : errno == EEXIST);
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
  constexpr std::uint64_t smallest_hole = 1 << 16;
  if (offset - offset_ < smallest_hole) return write(std::string(offset - offset_, '\0'));
  const auto end = static_cast<off_t>(offset);
  if (::ftruncate(descriptor_, end) != 0 || ::lseek(descriptor_, end, SEEK_SET) != end) fail_with_errno("cannot write");
  offset_ = offset;
}

void AtomicFile::finish() {
  if (::fsync(descriptor_) != 0) fail_with_errno("cannot write");
  is_finished_ = true;
}

bool AtomicFile::publish() {
  ensure(is_finished_, "publish() of an unfinished file");
  if (::rename(temporary_.c_str(), destination_.c_str()) != 0) fail_with_errno("cannot replace");
  temporary_.clear();
  const auto folder = destination_.has_parent_path() ? destination_.parent_path() : std::filesystem::path(".");
  const int folder_descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder_descriptor < 0) return false;  // a folder may be writable and not readable; the rename stands
  const bool is_on_disk = ::fsync(folder_descriptor) == 0;
  ::close(folder_descriptor);
  return is_on_disk;
}

void AtomicFile::keep_permissions() const {
  struct stat status {};
  if (::stat(destination_.c_str(), &status) == 0) ::fchmod(descriptor_, status.st_mode & 0777);
}

void AtomicFile::fail_with_errno(std::string_view what) const {
  const int code = errno;
  throw FileError(concat("[file '", destination_.string(), "'] ", what, ": ", std::strerror(code)), code);
}

}  // namespace backpass::onnx_io
