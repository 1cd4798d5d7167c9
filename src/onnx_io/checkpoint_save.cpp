#include <set>
#include <system_error>

#include "backpass/error.hpp"
#include "onnx_io/atomic_file.hpp"
#include "onnx_io/checkpoint_external.hpp"
#include "onnx_io/checkpoint_file.hpp"
#include "support/printable.hpp"

namespace backpass::onnx_io {
namespace {

namespace fs = std::filesystem;

template <class Visit>
void for_each_momentum(const CheckpointState& state, const Visit& visit) {
  for (const OptimizerGroup& group : state.optimizer_groups()) {
    for (const auto& [name, momentums] : group.momentums) {
      for (const auto& [momentum, tensor] : momentums) visit(group, name, momentum, tensor);
    }
  }
}

struct Sizes {
  std::uint64_t parameters = 0;
  std::uint64_t momentums = 0;
};

Sizes measure(const CheckpointState& state, bool with_groups) {
  Sizes sizes;
  for (const Parameter& p : state.parameters()) sizes.parameters += p.tensor.bytes();
  if (!with_groups) return sizes;
  for_each_momentum(
      state, [&](const auto&, const auto&, const auto&, const Tensor& tensor) { sizes.momentums += tensor.bytes(); });
  return sizes;
}

/// Momentums stay in the checkpoint, where ONNX Runtime Training looks for them, unless they do not fit: then only
/// Backpass can read the files, which the other program could not have written.
DataLayout choose_external(const CheckpointState& state, bool with_groups, std::uint64_t threshold) {
  DataLayout layout;
  if (state.is_nominal()) return layout;
  const Sizes sizes = measure(state, with_groups);
  if (!state.uses_external_data() && sizes.parameters + sizes.momentums < threshold) return layout;
  for (const Parameter& p : state.parameters()) {
    if (is_external_size(p.tensor)) append(layout, p.tensor);
  }
  if (sizes.momentums < threshold) return layout;
  for_each_momentum(state, [&](const auto&, const auto&, const auto&, const Tensor& tensor) {
    if (is_external_size(tensor)) append(layout, tensor);
  });
  return layout;
}

void save_alone(const CheckpointState& state, const fs::path& file, bool with_groups) {
  const bool leaves_data = used_data(file).has_value();
  const OwnedBytes bytes = write_checkpoint(state, with_groups, {});
  AtomicFile checkpoint(file);
  checkpoint.write(bytes.view);
  checkpoint.finish();
  const bool is_on_disk = checkpoint.publish();
  std::error_code ignored;  // a file too many does no harm
  if (leaves_data && is_on_disk) fs::remove(data_file_of(file), ignored);
}

void save_with_data(const CheckpointState& state, const fs::path& file, bool with_groups, DataLayout layout) {
  const auto in_use = used_data(file);
  const fs::path data_file = data_file_of(file);
  place(layout, in_use);
  const OwnedBytes bytes = write_checkpoint(state, with_groups, layout);
  AtomicFile data(data_file);
  write_data(data, layout, data_file, in_use);
  AtomicFile checkpoint(file);
  checkpoint.write(bytes.view);
  data.finish();
  checkpoint.finish();
  data.publish();
  if (checkpoint.publish() && in_use) release(data_file, *in_use);
}

}  // namespace

void check_groups(const CheckpointState& state, std::string_view where) {
  std::set<std::string_view> names;
  for (const OptimizerGroup& group : state.optimizer_groups()) {
    if (group.name.empty()) fail(where, "an optimizer group needs a name");
    if (!names.insert(group.name).second) fail(where, "got two optimizer groups ", printable(group.name));
    for (const auto& [name, momentums] : group.momentums) {
      if (state.has_parameter(name)) continue;
      fail(where, "optimizer group ", printable(group.name), ": got momentums of ", printable(name),
           ", which is not a parameter");
    }
  }
  for_each_momentum(state, [&](const auto& group, const auto& name, const auto& momentum, const Tensor& tensor) {
    const Parameter& p = state.parameter(name);
    if (state.is_nominal()) fail(where, "parameter ", printable(name), ": got momentums for a parameter without data");
    if (tensor.dtype() == DType::string || tensor.dtype() == DType::undefined || tensor.dims() != p.tensor.dims()) {
      fail(where, "optimizer group ", printable(group.name), ": ", printable(momentum), " of parameter ",
           printable(name), ": got ", name_of(tensor.dtype()), shown(tensor.dims()), ", expected the shape ",
           shown(p.tensor.dims()));
    }
  });
}

void save_checkpoint(const CheckpointState& state, const fs::path& file, bool include_optimizer_state,
                     std::uint64_t external_threshold) {
  const std::string where = concat("[checkpoint ", printable(file.string()), "] ");
  if (!file.has_filename()) fail(where, "expected the name of a file");
  if (include_optimizer_state) check_groups(state, where);
  DataLayout layout = choose_external(state, include_optimizer_state, external_threshold);
  const FolderLock lock(file);
  if (layout.empty()) {
    save_alone(state, file, include_optimizer_state);
  } else {
    save_with_data(state, file, include_optimizer_state, std::move(layout));
  }
}

}  // namespace backpass::onnx_io
