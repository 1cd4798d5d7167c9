#include <algorithm>
#include <utility>

#include "backpass/error.hpp"
#include "onnx_io/checkpoint_file.hpp"
#include "onnx_io/checkpoint_schema.hpp"
#include "support/printable.hpp"

namespace backpass::onnx_io {
namespace {

using flatbuffers::Offset;

/// More than the tables and names of one tensor take.
constexpr std::uint64_t kTensorOverhead = 256;

std::uint64_t inline_size(const Tensor& tensor, std::string_view name, const DataLayout& layout) {
  const std::uint64_t data = layout.offsets.contains(&tensor) ? 0 : tensor.bytes();
  return data + name.size() + tensor.dims().size() * sizeof(std::int64_t) + kTensorOverhead;
}

std::uint64_t size_of(const Properties& properties) {
  std::uint64_t total = 0;
  for (const auto& [name, value] : properties) {
    const auto* const text = std::get_if<std::string>(&value);
    total += kTensorOverhead + name.size() + (text == nullptr ? 0 : text->size());
  }
  return total;
}

/// An upper bound, so that the builder allocates once.
std::uint64_t estimate(const CheckpointState& state, bool with_groups, const DataLayout& layout) {
  std::uint64_t total = 4096 + size_of(state.properties()) + size_of(state.resume().scheduler_state);
  for (const Parameter& p : state.parameters()) total += inline_size(p.tensor, p.name, layout);
  if (!with_groups) return total;
  for (const OptimizerGroup& group : state.optimizer_groups()) {
    total += kTensorOverhead + group.name.size();
    for (const auto& [name, momentums] : group.momentums) {
      total += kTensorOverhead + name.size();
      for (const auto& [momentum, tensor] : momentums) total += inline_size(tensor, momentum, layout);
    }
  }
  return total;
}

class Writer {
 public:
  Writer(const CheckpointState& state, bool with_groups, const DataLayout& layout, std::size_t size)
      : state_(state), with_groups_(with_groups), layout_(layout), builder_(size) {}

  flatbuffers::DetachedBuffer write() {
    const auto module = state_.parameters().empty() ? Offset<odtc::ModuleState>() : write_module();
    const auto groups = write_groups();
    const auto properties = write_properties();
    odtc::CheckpointBuilder checkpoint(builder_);
    checkpoint.add_version(kCheckpointVersion);
    if (!module.IsNull()) checkpoint.add_module_state(module);
    if (!groups.IsNull()) checkpoint.add_optimizer_groups(groups);
    if (!properties.IsNull()) checkpoint.add_property_bag(properties);
    odtc::FinishCheckpointBuffer(builder_, checkpoint.Finish());
    return builder_.Release();
  }

 private:
  template <class T>
  using Tables = std::vector<Offset<T>>;

  Offset<odtc::ModuleState> write_module() {
    Tables<odtc::Tensor> trained;
    Tables<odtc::Tensor> frozen;
    for (const Parameter& p : state_.parameters()) {
      auto& list = p.requires_grad ? trained : frozen;
      list.push_back(state_.is_nominal() ? write_nominal(p) : write_tensor(p.name, p.tensor));
    }
    return odtc::CreateModuleState(builder_, builder_.CreateVector(trained), builder_.CreateVector(frozen),
                                   state_.is_nominal(), !layout_.empty());
  }

  Offset<odtc::Tensor> write_nominal(const Parameter& p) {
    const auto name = builder_.CreateString(p.name);
    return odtc::CreateTensor(builder_, name, 0, 0, static_cast<std::int32_t>(p.dtype));
  }

  Offset<odtc::Tensor> write_tensor(const std::string& name, const Tensor& tensor) {
    const auto name_at = builder_.CreateString(name);
    const auto dims = builder_.CreateVector(tensor.dims().data(), tensor.dims().size());
    const auto type = static_cast<std::int32_t>(tensor.dtype());
    const auto external = layout_.offsets.find(&tensor);
    if (external != layout_.offsets.end()) {
      return odtc::CreateTensor(builder_, name_at, 0, dims, type, 0, static_cast<std::int64_t>(external->second));
    }
    const auto data = builder_.CreateVector(static_cast<const std::uint8_t*>(tensor.data()), tensor.bytes());
    return odtc::CreateTensor(builder_, name_at, 0, dims, type, data);
  }

  Offset<flatbuffers::Vector<Offset<odtc::OptimizerGroup>>> write_groups() {
    if (!with_groups_ || state_.optimizer_groups().empty()) return {};
    Tables<odtc::OptimizerGroup> groups;
    for (const OptimizerGroup& group : state_.optimizer_groups()) {
      Tables<odtc::ParameterOptimizerState> entries;
      for (const auto& [name, momentums] : group.momentums) entries.push_back(write_momentums(name, momentums));
      const auto entries_at = builder_.CreateVector(entries);
      groups.push_back(odtc::CreateOptimizerGroup(builder_, builder_.CreateString(group.name), group.step,
                                                  group.initial_lr, entries_at));
    }
    return builder_.CreateVector(groups);
  }

  Offset<odtc::ParameterOptimizerState> write_momentums(const std::string& name,
                                                        const OptimizerGroup::Momentums& momentums) {
    Tables<odtc::Tensor> tensors;
    for (const auto& [momentum, tensor] : momentums) tensors.push_back(write_tensor(momentum, tensor));
    const auto tensors_at = builder_.CreateVector(tensors);
    return odtc::CreateParameterOptimizerState(builder_, builder_.CreateString(name), tensors_at);
  }

  Offset<odtc::PropertyBag> write_properties() {
    Properties all = to_properties(state_.resume(), with_groups_, current_step(state_));
    all.insert(state_.properties().begin(), state_.properties().end());
    if (all.empty()) return {};
    for (const auto& [name, value] : all) {
      const auto name_at = builder_.CreateString(name);
      if (const auto* number = std::get_if<std::int64_t>(&value)) {
        ints_.push_back(odtc::CreateIntProperty(builder_, name_at, *number));
      } else if (const auto* real = std::get_if<float>(&value)) {
        floats_.push_back(odtc::CreateFloatProperty(builder_, name_at, *real));
      } else {
        const auto text = builder_.CreateString(std::get<std::string>(value));
        strings_.push_back(odtc::CreateStringProperty(builder_, name_at, text));
      }
    }
    const auto ints = builder_.CreateVector(ints_);
    const auto floats = builder_.CreateVector(floats_);
    const auto strings = builder_.CreateVector(strings_);
    return odtc::CreatePropertyBag(builder_, ints, floats, strings);
  }

  const CheckpointState& state_;
  bool with_groups_;
  const DataLayout& layout_;
  flatbuffers::FlatBufferBuilder builder_;
  Tables<odtc::IntProperty> ints_;
  Tables<odtc::FloatProperty> floats_;
  Tables<odtc::StringProperty> strings_;
};

}  // namespace

OwnedBytes write_checkpoint(const CheckpointState& state, bool include_optimizer_state, const DataLayout& layout) {
  const std::uint64_t size = estimate(state, include_optimizer_state, layout);
  if (size >= FLATBUFFERS_MAX_BUFFER_SIZE) {
    fail("the checkpoint: got ", size, " bytes, expected less than 2 GiB; save it to a file, with external data");
  }
  auto buffer = std::make_shared<flatbuffers::DetachedBuffer>(
      Writer(state, include_optimizer_state, layout, static_cast<std::size_t>(size)).write());
  const std::string_view view(reinterpret_cast<const char*>(buffer->data()), buffer->size());
  return {std::move(buffer), view};
}

}  // namespace backpass::onnx_io
