// `<checkpoint>.data`: tensors beside the checkpoint, replaced without a moment at which the two files disagree.
//
// Both names are fixed by the format, and no file system renames two files at once. So the data file is replaced first,
// by one that serves the old checkpoint and the new one alike: the old tensors stay at their offsets, the new ones are
// put where the old ones are not. Then the checkpoint is replaced, then the space of the old tensors is given back:
//
//   checkpoint   data file            what a crash after this leaves
//   old          old                  the old state
//   old          old + new            the old state: its bytes are at its offsets
//   new          old + new            the new state
//   new          new                  the new state
//
// Every file is on the disk before it is renamed, and every rename before the next. Saving over and over, new tensors
// go alternately behind the old ones and in front of them, so the file does not grow. ONNX Runtime Training reads the
// offsets as they are, so it, too, finds the old or the new state at any time. The price is that a save needs disk
// space for the new tensors and once more for the old ones.
#pragma once

#include <filesystem>
#include <optional>

#include "onnx_io/atomic_file.hpp"
#include "onnx_io/checkpoint_file.hpp"

namespace backpass::onnx_io {

/// True for tensors that are worth a place in the data file.
bool is_external_size(const Tensor& tensor);

/// Adds a tensor behind the others.
void append(DataLayout& layout, const Tensor& tensor);

/// Moves the whole layout out of the way of what is in use.
void place(DataLayout& layout, const std::optional<DataRange>& in_use);

/// Writes the tensors of the layout, and what is in use of `old_data`, each at its offset.
void write_data(AtomicFile& file, const DataLayout& layout, const std::filesystem::path& old_data,
                const std::optional<DataRange>& in_use);

/// Gives the space of `dead` back to the file system, if it can. The file keeps its length: a reader that has it mapped
/// would not survive its being cut.
void release(const std::filesystem::path& data, DataRange dead) noexcept;

/// Held while the files of one folder are replaced: two savers taking turns between each other's renames would leave
/// one's checkpoint with the other's data.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& file);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

 private:
  int descriptor_;  ///< -1 when the folder cannot be opened: saving goes on, unguarded
};

}  // namespace backpass::onnx_io
