#include "onnx_io/checkpoint_external.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "backpass/error.hpp"
#include "onnx_io/atomic_file.hpp"
#include "onnx_io/checkpoint_verify.hpp"
#include "onnx_io/mapped_file.hpp"

namespace backpass::onnx_io {
namespace {

namespace fs = std::filesystem;

void widen(DataRange& range, const TableVector<odtc::Tensor>* tensors) {
  if (tensors == nullptr) return;
  for (const auto* tensor : *tensors) {
    if (tensor->external_data_offset() < 0) continue;
    const auto begin = static_cast<std::uint64_t>(tensor->external_data_offset());
    range = {std::min(range.begin, begin), std::max(range.end, begin + read_header(*tensor, "").bytes)};
  }
}

DataRange used_range(const odtc::Checkpoint& root) {
  DataRange range{std::numeric_limits<std::uint64_t>::max(), 0};
  if (root.module_state() != nullptr) {
    widen(range, root.module_state()->requires_grad_params());
    widen(range, root.module_state()->frozen_params());
  }
  if (root.optimizer_groups() == nullptr) return range;
  for (const auto* group : *root.optimizer_groups()) {
    if (group->optimizer_states() == nullptr) continue;
    for (const auto* entry : *group->optimizer_states()) widen(range, entry->momentums());
  }
  return range;
}

constexpr std::uint64_t kTensorAlignment = 64;
constexpr std::uint64_t kPage = 4096;  // holes are made of whole pages

std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

void copy_range(AtomicFile& to, const fs::path& from, DataRange range) {
  const auto mapped = MappedFile::open(from, "", /*follow_link=*/true);
  if (mapped->bytes().size() < range.end) fail("[file '", from.string(), "'] changed while the checkpoint was saved");
  to.pad_to(range.begin);
  to.write(mapped->bytes().substr(range.begin, range.end - range.begin));
}

void write_layout(AtomicFile& to, const DataLayout& layout) {
  for (const Tensor* const tensor : layout.tensors) {
    to.pad_to(layout.offsets.at(tensor));
    to.write({static_cast<const char*>(tensor->data()), tensor->bytes()});
  }
}

}  // namespace

std::optional<DataRange> used_data(const fs::path& file) {
  try {
    const auto mapped = MappedFile::open(file, "");
    const DataRange range = used_range(verified_root(mapped->bytes(), ""));
    if (range.end <= range.begin || range.end > fs::file_size(data_file_of(file))) return std::nullopt;
    return range;
  } catch (const Error&) {
  } catch (const fs::filesystem_error&) {
  }
  return std::nullopt;
}

bool is_external_size(const Tensor& tensor) {
  constexpr std::size_t smallest = 64;
  return tensor.bytes() >= smallest;
}

void append(DataLayout& layout, const Tensor& tensor) {
  layout.tensors.push_back(&tensor);
  layout.offsets[&tensor] = layout.range.end;
  layout.range.end = round_up(layout.range.end + tensor.bytes(), kTensorAlignment);
}

void place(DataLayout& layout, const std::optional<DataRange>& in_use) {
  if (!in_use || layout.range.end <= in_use->begin) return;
  const std::uint64_t begin = round_up(in_use->end, kPage);
  for (auto& [tensor, offset] : layout.offsets) offset += begin;
  layout.range = {begin, begin + layout.range.end};
}

void write_data(AtomicFile& file, const DataLayout& layout, const fs::path& old_data,
                const std::optional<DataRange>& in_use) {
  const bool comes_first = !in_use || layout.range.begin < in_use->begin;
  if (in_use && !comes_first) copy_range(file, old_data, *in_use);
  write_layout(file, layout);
  if (in_use && comes_first) copy_range(file, old_data, *in_use);
}

void release(const fs::path& data, DataRange dead) noexcept {
  const int descriptor = ::open(data.c_str(), O_WRONLY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(dead.begin),
              static_cast<off_t>(dead.end - dead.begin));
  ::close(descriptor);
}

FolderLock::FolderLock(const fs::path& file)
    : descriptor_(
          ::open(file.has_parent_path() ? file.parent_path().c_str() : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  while (descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
  }
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace backpass::onnx_io
