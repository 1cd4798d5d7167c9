// The parts of loading and saving a checkpoint (include/backpass/checkpoint.hpp).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "backpass/checkpoint.hpp"

namespace backpass::onnx_io {

/// A piece of `<checkpoint>.data`, in bytes.
struct DataRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// `<checkpoint>.data`
std::filesystem::path data_file_of(const std::filesystem::path& checkpoint);

/// A checkpoint from bytes. `file` is where they come from, for messages and to find external data; empty: memory.
CheckpointState read_checkpoint(std::string_view bytes, const std::filesystem::path& file);

/// What the checkpoint in `file` uses of its data file; nothing when it uses none, or could not be loaded anyway.
std::optional<DataRange> used_data(const std::filesystem::path& file);

/// Which tensors go to the data file, and where to.
struct DataLayout {
  std::vector<const Tensor*> tensors;  ///< of the state, in the order of their offsets
  std::unordered_map<const Tensor*, std::uint64_t> offsets;
  DataRange range;

  bool empty() const { return tensors.empty(); }
};

/// The FlatBuffer, everything but the tensors in `layout` inside it. Throws InvalidInput when it would pass 2 GiB.
/// The bytes live as long as the owner.
struct OwnedBytes {
  std::shared_ptr<const void> owner;
  std::string_view view;
};
OwnedBytes write_checkpoint(const CheckpointState& state, bool include_optimizer_state, const DataLayout& layout);

/// Throws InvalidInput for what must not be written: momentums of unknown parameters or other shapes, groups of one
/// name.
void check_groups(const CheckpointState& state, std::string_view where);

/// From this size on a checkpoint is split in two files.
inline constexpr std::uint64_t kExternalThreshold = std::uint64_t{1800} << 20U;

/// CheckpointState::save with another threshold.
void save_checkpoint(const CheckpointState& state, const std::filesystem::path& file, bool include_optimizer_state,
                     std::uint64_t external_threshold);

/// ResumeState <-> properties under kReservedPrefix. `step` is that of the optimizer.
Properties to_properties(const ResumeState& resume, bool include_optimizer_state, std::int64_t step);
ResumeState to_resume_state(const Properties& reserved, std::int64_t step, std::string_view where);

/// The step that ResumeState goes with: the first group's, 0 without groups.
std::int64_t current_step(const CheckpointState& state);

}  // namespace backpass::onnx_io
