// The state of a training run: parameters, what the optimizer remembers, and properties of the user's own.
//
//   auto state = backpass::CheckpointState::load("artifacts/checkpoint");
//   state.set_property("epoch", std::int64_t{3});
//   state.save("artifacts/checkpoint", /*include_optimizer_state=*/true);
//
// The file is that of ONNX Runtime Training (FlatBuffers, identifier ODTC, version 2): either program reads what the
// other wrote. Bad files and bad arguments throw InvalidInput naming the file and the parameter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "backpass/tensor.hpp"

namespace backpass {

/// Anything the user wants to keep with the parameters.
using PropertyValue = std::variant<std::int64_t, float, std::string>;
using Properties = std::map<std::string, PropertyValue, std::less<>>;

/// Names that start so are Backpass's own: they hold ResumeState and are not among properties().
inline constexpr std::string_view kReservedPrefix = "backpass.";

/// One parameter. In a nominal state it has a name and a dtype, but no tensor yet.
struct Parameter {
  std::string name;
  bool requires_grad = true;  ///< trained; otherwise frozen
  DType dtype = DType::undefined;
  Tensor tensor;
};

/// What an optimizer remembers about the parameters it trains together.
struct OptimizerGroup {
  using Momentums = std::map<std::string, Tensor, std::less<>>;  ///< "momentum0", "momentum1" (AdamW)

  std::string name = "group0";
  std::int64_t step = 0;  ///< completed updates
  float initial_lr = 0.001F;
  std::map<std::string, Momentums, std::less<>> momentums;  ///< by name of the parameter
};

/// What else a run needs to go on exactly where it stopped. ONNX Runtime Training has no place for it, so it is stored
/// as properties under kReservedPrefix, which that program keeps and ignores:
///
///   backpass.learning_rate, backpass.seed, backpass.random_counter, backpass.scheduler, backpass.scheduler.<key>
///
/// Learning rate and scheduler belong to the optimizer: they are saved only with the optimizer's state, along with its
/// step (backpass.step), and forgotten on loading when that step is no longer the group's, because another program has
/// trained on in the meantime.
struct ResumeState {
  std::optional<float> learning_rate;  ///< the current one
  std::optional<std::int64_t> seed;
  std::optional<std::uint64_t> random_counter;
  std::string scheduler;       ///< its kind, as "linear"; empty: none
  Properties scheduler_state;  ///< whatever the scheduler needs; any names
};

class CheckpointState {
 public:
  /// No parameters, no groups, no properties.
  CheckpointState() = default;

  /// Reads a file, and its external data from `<path>.data` if it says so. Everything is copied: the file may change
  /// afterwards, and the tensors may be written to.
  static CheckpointState load(const std::filesystem::path& path);

  /// The same from memory; refuses a checkpoint with external data, which has no file to be beside of.
  static CheckpointState load(std::span<const std::byte> bytes);

  /// Writes the file, or throws and leaves what was there as it was. At every moment, even after a crash or a power
  /// cut, `path` is the old or the new checkpoint, whole; `<path>.data` goes with it. Concurrent saves to one folder
  /// wait for each other.
  void save(const std::filesystem::path& path, bool include_optimizer_state = false) const;

  /// The same into memory. Throws when the tensors need external data (2 GiB).
  std::string to_bytes(bool include_optimizer_state = false) const;

  // ---- Parameters, in the order they were added (of a file: trained ones first).

  const std::vector<Parameter>& parameters() const { return parameters_; }
  bool has_parameter(std::string_view name) const { return index_.find(std::string(name)) != index_.end(); }

  /// Throws InvalidInput for an unknown name. The tensor is a handle: whoever holds it sees later updates.
  const Parameter& parameter(std::string_view name) const;

  /// The state shares the tensor's memory; in a nominal state `add_nominal` is to be used instead. Throws for a name
  /// that is empty or taken, and for strings, which cannot be trained.
  void add_parameter(std::string name, Tensor tensor, bool requires_grad = true);

  /// A parameter of a nominal state: without data, so that a device can be sent its parameters separately. The first
  /// one makes an empty state nominal.
  void add_nominal(std::string name, DType dtype, bool requires_grad = true);

  /// Copies values into the parameter's own memory, so that everyone who shares it sees them. Throws unless dtype and
  /// shape are the parameter's, and for a nominal state.
  void set_parameter(std::string_view name, const Tensor& values);

  /// The parameter is this memory from now on, of the same dtype and shape; a name that is not there is added.
  void share_parameter(std::string name, Tensor tensor, bool requires_grad = true);

  /// True while the parameters have no data.
  bool is_nominal() const { return is_nominal_; }

  /// Ends a nominal state: one tensor per parameter, in order, shared from now on.
  void complete(std::span<const Tensor> tensors);

  /// Elements of all parameters. Throws for a nominal state.
  std::int64_t parameter_count(bool trainable_only = true) const;

  // ---- Optimizer groups, in order. Changes are checked by save.

  std::vector<OptimizerGroup>& optimizer_groups() { return groups_; }
  const std::vector<OptimizerGroup>& optimizer_groups() const { return groups_; }
  OptimizerGroup* find_group(std::string_view name);  ///< null when there is none
  const OptimizerGroup* find_group(std::string_view name) const;

  // ---- Properties, sorted by name.

  const Properties& properties() const { return properties_; }
  bool has_property(std::string_view name) const { return properties_.find(name) != properties_.end(); }
  const PropertyValue& property(std::string_view name) const;  ///< throws InvalidInput for an unknown name
  /// Adds or replaces. Throws for an empty name and for kReservedPrefix.
  void set_property(std::string name, PropertyValue value);
  void remove_property(std::string_view name);

  ResumeState& resume() { return resume_; }
  const ResumeState& resume() const { return resume_; }

  // ---- An update that failed in its midst (TrainingSession::train_and_update).

  /// True when some parameters have moved and others have not. save() and sessions refuse the state from then on; load
  /// the last checkpoint.
  bool is_half_updated() const { return is_half_updated_; }
  void set_half_updated() { is_half_updated_ = true; }
  /// Throws InvalidInput if so; `what` opens the message.
  void require_whole(std::string_view what) const;

  // ---- External data: tensors of 64 bytes and more live in `<path>.data`.

  /// True when loaded so, or asked for. States of 1800 MiB and more are saved so in any case.
  bool uses_external_data() const { return uses_external_data_; }
  void use_external_data(bool use) { uses_external_data_ = use; }

 private:
  void insert(Parameter parameter);

  std::vector<Parameter> parameters_;
  std::unordered_map<std::string, std::size_t> index_;  ///< name -> position
  std::vector<OptimizerGroup> groups_;
  Properties properties_;
  ResumeState resume_;
  bool is_nominal_ = false;
  bool uses_external_data_ = false;
  bool is_half_updated_ = false;
};

}  // namespace backpass
