#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "backpass/checkpoint.hpp"
#include "onnx_io/checkpoint_file.hpp"
#include "onnx_io/mapped_file.hpp"
#include "support/printable.hpp"

namespace backpass {
namespace {

std::string known_names(const std::vector<Parameter>& parameters) {
  constexpr std::size_t most = 8;
  std::string names;
  for (std::size_t i = 0; i < std::min(most, parameters.size()); ++i) {
    names += (i > 0 ? ", " : "") + printable(parameters[i].name);
  }
  if (parameters.size() > most) names += ", ...";
  return names.empty() ? "none" : names;
}

void check_trainable_type(const std::string& name, DType dtype) {
  if (dtype == DType::undefined) fail("parameter ", printable(name), ": got no element type");
  if (dtype == DType::string) fail<Unsupported>("parameter ", printable(name), ": strings cannot be trained");
}

std::string describe(const Tensor& tensor) { return concat(name_of(tensor.dtype()), to_string(tensor.dims())); }

std::pair<std::uint64_t, std::uint64_t> file_number(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  return {status.st_dev, status.st_ino};
}

void check_name(std::string_view name, const char* what) {
  if (name.empty()) fail("a ", what, " needs a name");
  if (!is_text(name)) fail(what, " ", printable(name), ": got bytes that are not UTF-8 text, expected a name");
}

}  // namespace

CheckpointState CheckpointState::load(const std::filesystem::path& path) {
  // While two files are read they may be replaced. A replaced checkpoint is another file; its number is not given away
  // again while it is mapped.
  for (int attempts = 100;; --attempts) {
    const auto number = file_number(path);
    const auto file = onnx_io::MappedFile::open(path, concat("[checkpoint ", printable(path.string()), "] "));
    try {
      CheckpointState state = onnx_io::read_checkpoint(file->bytes(), path);
      if (!state.uses_external_data() || number == file_number(path) || attempts == 0) return state;
    } catch (const InvalidInput&) {
      if (number == file_number(path) || attempts == 0) throw;
    }
  }
}

CheckpointState CheckpointState::load(std::span<const std::byte> bytes) {
  return onnx_io::read_checkpoint({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, {});
}

void CheckpointState::require_whole(std::string_view what) const {
  if (!is_half_updated_) return;
  fail(what, ": got parameters of which a step that failed has updated some and not others; load the last checkpoint");
}

void CheckpointState::save(const std::filesystem::path& path, bool include_optimizer_state) const {
  require_whole("save");
  onnx_io::save_checkpoint(*this, path, include_optimizer_state, onnx_io::kExternalThreshold);
}

std::string CheckpointState::to_bytes(bool include_optimizer_state) const {
  require_whole("to_bytes");
  if (include_optimizer_state) onnx_io::check_groups(*this, "");
  return std::string(onnx_io::write_checkpoint(*this, include_optimizer_state, {}).view);
}

const Parameter& CheckpointState::parameter(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  if (found == index_.end()) {
    fail("no parameter ", printable(name), " in the checkpoint; it has ", known_names(parameters_));
  }
  return parameters_[found->second];
}

void CheckpointState::insert(Parameter parameter) {
  check_name(parameter.name, "parameter");
  check_trainable_type(parameter.name, parameter.dtype);
  if (!index_.emplace(parameter.name, parameters_.size()).second) {
    fail("parameter ", printable(parameter.name), ": the checkpoint has one of this name already");
  }
  parameters_.push_back(std::move(parameter));
}

void CheckpointState::add_parameter(std::string name, Tensor tensor, bool requires_grad) {
  if (is_nominal_) fail("parameter ", printable(name), ": the state is nominal; use add_nominal, then complete");
  const DType dtype = tensor.dtype();
  insert({std::move(name), requires_grad, dtype, std::move(tensor)});
}

void CheckpointState::add_nominal(std::string name, DType dtype, bool requires_grad) {
  if (!is_nominal_ && !parameters_.empty()) {
    fail("parameter ", printable(name), ": got one without data, but the state holds parameters with data");
  }
  insert({std::move(name), requires_grad, dtype, {}});
  is_nominal_ = true;
}

void CheckpointState::set_parameter(std::string_view name, const Tensor& values) {
  const Parameter& found = parameter(name);
  if (is_nominal_) fail("parameter ", printable(name), ": the state is nominal; load all parameters first");
  Tensor own = found.tensor;
  if (values.dtype() != own.dtype() || values.dims() != own.dims()) {
    fail("parameter ", printable(name), ": got ", describe(values), ", expected ", describe(own));
  }
  if (own.bytes() > 0) std::memmove(own.mutable_data(), values.data(), own.bytes());
}

void CheckpointState::share_parameter(std::string name, Tensor tensor, bool requires_grad) {
  if (!has_parameter(name)) return add_parameter(std::move(name), std::move(tensor), requires_grad);
  Parameter& found = parameters_[index_.at(name)];
  if (is_nominal_) fail("parameter ", printable(name), ": the state is nominal; load all parameters first");
  if (tensor.dtype() != found.tensor.dtype() || tensor.dims() != found.tensor.dims()) {
    fail("parameter ", printable(name), ": got ", describe(tensor), ", expected ", describe(found.tensor));
  }
  found.tensor = std::move(tensor);
  found.requires_grad = requires_grad;
}

void CheckpointState::complete(std::span<const Tensor> tensors) {
  if (!is_nominal_) fail("the state is not nominal: its parameters have data; use set_parameter");
  if (tensors.size() != parameters_.size()) {
    fail("got ", tensors.size(), " tensors, expected one for each of ", parameters_.size(), " parameters");
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].dtype() == parameters_[i].dtype) continue;
    fail("parameter ", printable(parameters_[i].name), ": got ", name_of(tensors[i].dtype()), ", expected ",
         name_of(parameters_[i].dtype));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) parameters_[i].tensor = tensors[i];
  is_nominal_ = false;
}

std::int64_t CheckpointState::parameter_count(bool trainable_only) const {
  if (is_nominal_) fail("the state is nominal: the shapes of its parameters are not known; load parameters first");
  return std::accumulate(parameters_.begin(), parameters_.end(), std::int64_t{0},
                         [&](std::int64_t sum, const Parameter& p) {
                           return p.requires_grad || !trainable_only ? sum + p.tensor.size() : sum;
                         });
}

OptimizerGroup* CheckpointState::find_group(std::string_view name) {
  const auto found =
      std::find_if(groups_.begin(), groups_.end(), [&](const auto& group) { return group.name == name; });
  return found == groups_.end() ? nullptr : &*found;
}

const OptimizerGroup* CheckpointState::find_group(std::string_view name) const {
  const auto found =
      std::find_if(groups_.begin(), groups_.end(), [&](const auto& group) { return group.name == name; });
  return found == groups_.end() ? nullptr : &*found;
}

const PropertyValue& CheckpointState::property(std::string_view name) const {
  const auto found = properties_.find(name);
  if (found == properties_.end()) fail("no property ", printable(name), " in the checkpoint");
  return found->second;
}

void CheckpointState::set_property(std::string name, PropertyValue value) {
  check_name(name, "property");
  if (const auto* text = std::get_if<std::string>(&value); text != nullptr && !is_utf8(*text)) {
    fail("property ", printable(name), ": got bytes that are not UTF-8, expected text");
  }
  if (name.starts_with(kReservedPrefix)) {
    fail("property ", printable(name), ": names starting with '", kReservedPrefix, "' are reserved; use another");
  }
  properties_.insert_or_assign(std::move(name), std::move(value));
}

void CheckpointState::remove_property(std::string_view name) {
  const auto found = properties_.find(name);
  if (found == properties_.end()) fail("no property ", printable(name), " in the checkpoint");
  properties_.erase(found);
}

}  // namespace backpass
