#include "capi/handles.hpp"

using namespace backpass;
using namespace backpass::capi;

namespace {

CheckpointState& state_of(BpCheckpoint* c) { return *need(c, "state").state; }
const CheckpointState& state_of(const BpCheckpoint* c) { return *need(c, "state").state; }

BpCheckpoint* wrap(CheckpointState&& state) {
  return new BpCheckpoint{std::make_shared<CheckpointState>(std::move(state)), std::nullopt};
}

PropertyValue to_property(BpPropertyType type, const void* value) {
  switch (type) {
    case BP_PROPERTY_INT:
      return *static_cast<const std::int64_t*>(value);
    case BP_PROPERTY_FLOAT:
      return *static_cast<const float*>(value);
    case BP_PROPERTY_STRING:
      return std::string(static_cast<const char*>(value));
  }
  fail("property type: got ", static_cast<int>(type), ", expected one of BpPropertyType");
}

}  // namespace

BpStatus bp_load_checkpoint(const char* path, BpCheckpoint** out) {
  return guarded([&] { need(out, "out") = wrap(CheckpointState::load(std::filesystem::path(&need(path, "path")))); });
}

BpStatus bp_load_checkpoint_from_buffer(const void* data, size_t bytes, BpCheckpoint** out) {
  return guarded([&] {
    if (data == nullptr) fail("data: got NULL, expected a pointer");
    need(out, "out") = wrap(CheckpointState::load(std::span(static_cast<const std::byte*>(data), bytes)));
  });
}

BpStatus bp_save_checkpoint(const BpCheckpoint* state, const char* path, int include_optimizer_state) {
  return guarded([&] { state_of(state).save(&need(path, "path"), include_optimizer_state != 0); });
}

void bp_release_checkpoint(BpCheckpoint* state) { delete state; }

BpStatus bp_add_property(BpCheckpoint* state, const char* name, BpPropertyType type, const void* value) {
  return guarded([&] {
    if (value == nullptr) fail("value: got NULL, expected a pointer");
    state_of(state).set_property(&need(name, "name"), to_property(type, value));
  });
}

BpStatus bp_get_property(BpCheckpoint* state, const char* name, BpPropertyType* type, const void** value) {
  return guarded([&] {
    need(state, "state").property = state_of(state).property(&need(name, "name"));
    const PropertyValue& found = *state->property;
    need(type, "type") = static_cast<BpPropertyType>(found.index());
    const auto* text = std::get_if<std::string>(&found);
    need(value, "value") =
        text != nullptr ? text->c_str() : std::visit([](const auto& v) { return static_cast<const void*>(&v); }, found);
  });
}

BpStatus bp_get_parameter_count(const BpCheckpoint* state, size_t* out) {
  return guarded([&] { need(out, "out") = state_of(state).parameters().size(); });
}

BpStatus bp_get_parameter_name(const BpCheckpoint* state, size_t index, const char** out) {
  return guarded([&] {
    const auto& all = state_of(state).parameters();
    if (index >= all.size()) fail("index: got ", index, ", expected less than ", all.size());
    need(out, "out") = all[index].name.c_str();
  });
}

BpStatus bp_get_parameter_type_and_shape(BpCheckpoint* state, const char* name, BpDType* dtype, const int64_t** dims,
                                         size_t* rank) {
  return guarded([&] {
    const Parameter& p = state_of(state).parameter(&need(name, "name"));
    need(dtype, "dtype") = static_cast<BpDType>(p.dtype);
    need(dims, "dims") = p.tensor.dims().data();
    need(rank, "rank") = p.tensor.dims().size();
  });
}

BpStatus bp_update_parameter(BpCheckpoint* state, const char* name, const BpTensor* value) {
  return guarded([&] { state_of(state).set_parameter(&need(name, "name"), need(value, "value").tensor); });
}

BpStatus bp_get_parameter(BpCheckpoint* state, const char* name, BpTensor** out) {
  return guarded([&] {
    const CheckpointState& s = state_of(state);
    const Parameter& p = s.parameter(&need(name, "name"));
    if (s.is_nominal()) fail("parameter '", p.name, "': got a nominal checkpoint state; load its parameters first");
    need(out, "out") = new BpTensor{p.tensor};
  });
}
