#include "onnx_io/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "backpass/error.hpp"
#include "support/mapped_memory.hpp"

namespace backpass::onnx_io {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& file, std::string_view context,
                                                   bool follow_link) {
  // O_NONBLOCK: opening a pipe must not wait for a writer.
  const Descriptor file_descriptor{
      ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | (follow_link ? 0 : O_NOFOLLOW))};
  if (file_descriptor.fd < 0) fail(context, "cannot open '", file.string(), "': ", std::strerror(errno));
  struct stat status {};
  if (::fstat(file_descriptor.fd, &status) != 0) {
    fail(context, "cannot examine '", file.string(), "': ", std::strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) fail(context, "'", file.string(), "' is not a regular file");
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return std::shared_ptr<const MappedFile>(new MappedFile(nullptr, 0));
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file_descriptor.fd, 0);
  if (data == MAP_FAILED) fail(context, "cannot map '", file.string(), "': ", std::strerror(errno));
  announce_mapping(data, size);
  return std::shared_ptr<const MappedFile>(new MappedFile(static_cast<const char*>(data), size));
}

MappedFile::~MappedFile() {
  if (size_ == 0) return;
  withdraw_mapping(data_);
  ::munmap(const_cast<char*>(data_), size_);
}

}  // namespace backpass::onnx_io
