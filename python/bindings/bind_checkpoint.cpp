#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "backpass/checkpoint.hpp"
#include "backpass/safetensors.hpp"
#include "bindings.hpp"

namespace nb = nanobind;
using namespace backpass;

namespace {

/// Arrays handed in may be read-only; training writes to parameters.
Tensor copy_of(const Tensor& source) {
  if (source.dtype() == DType::string || source.dtype() == DType::undefined) return source;
  Tensor copy(source.dtype(), source.dims());
  if (copy.bytes() > 0) std::memcpy(copy.mutable_data(), source.data(), copy.bytes());
  return copy;
}

DType to_dtype(int code) {
  if (!is_known_dtype(code)) fail("element type code: got ", code, ", expected one of ONNX's");
  return static_cast<DType>(code);
}

Tensor tensor_of(const CheckpointState& state, std::string_view name) {
  const Parameter& p = state.parameter(name);
  if (state.is_nominal()) fail("parameter '", p.name, "': the state is nominal; load all parameters first");
  return p.tensor;
}

std::vector<std::string> names_of(const CheckpointState& state) {
  std::vector<std::string> names;
  for (const Parameter& p : state.parameters()) names.push_back(p.name);
  return names;
}

void set_group(CheckpointState& state, const OptimizerGroup& group) {
  if (OptimizerGroup* const known = state.find_group(group.name)) {
    *known = group;
  } else {
    state.optimizer_groups().push_back(group);
  }
}

void complete(CheckpointState& state, const std::vector<Tensor>& tensors) {
  std::vector<Tensor> copies;
  for (const Tensor& t : tensors) copies.push_back(copy_of(t));
  state.complete(copies);
}

/// Only what is not a whole number may become a float: 2**64 must not lose digits silently.
void set_property(CheckpointState& state, std::string name, nb::handle value) {
  PropertyValue converted;
  std::int64_t number = 0;
  if (PyIndex_Check(value.ptr()) != 0) {
    if (!nb::try_cast(value, number)) fail("property '", name, "': got a number that does not fit in 64 bits");
    converted = number;
  } else if (!nb::try_cast(value, converted)) {
    throw nb::type_error("a property is an int, a float or a str");
  }
  state.set_property(std::move(name), std::move(converted));
}

void bind_parts(nb::module_& m) {
  nb::class_<OptimizerGroup>(m, "OptimizerGroup",
                             "What an optimizer remembers about the parameters it trains together.")
      .def(nb::init<>())
      .def_rw("name", &OptimizerGroup::name)
      .def_rw("step", &OptimizerGroup::step, "completed updates")
      .def_rw("initial_lr", &OptimizerGroup::initial_lr)
      .def_rw("momentums", &OptimizerGroup::momentums,
              "{parameter: {'momentum0': Tensor}}: a copy holding the same tensors")
      .def("__repr__", &describe_fields);
  nb::class_<ResumeState>(m, "ResumeState", "What else a run needs to go on exactly where it stopped.")
      .def(nb::init<>())
      .def_rw("learning_rate", &ResumeState::learning_rate, nb::arg().none())
      .def_rw("seed", &ResumeState::seed, nb::arg().none())
      .def_rw("random_counter", &ResumeState::random_counter, nb::arg().none())
      .def_rw("scheduler", &ResumeState::scheduler)
      .def_rw("scheduler_state", &ResumeState::scheduler_state)
      .def("__repr__", &describe_fields);
}

void bind_files(nb::class_<CheckpointState>& c) {
  c.def(nb::init<>())
      .def_static(
          "load", [](const std::filesystem::path& p) { return CheckpointState::load(p); }, nb::arg("path"), NoGil())
      .def_static(
          "load_bytes",
          [](const nb::bytes& b) { return CheckpointState::load(std::as_bytes(std::span(b.c_str(), b.size()))); },
          nb::arg("data"))
      .def("save", &CheckpointState::save, nb::arg("path"), nb::arg("include_optimizer_state") = false, NoGil())
      .def(
          "to_bytes",
          [](const CheckpointState& s, bool include_optimizer_state) {
            const std::string bytes = s.to_bytes(include_optimizer_state);
            return nb::bytes(bytes.data(), bytes.size());
          },
          nb::arg("include_optimizer_state") = false)
      .def_prop_rw("uses_external_data", &CheckpointState::uses_external_data, &CheckpointState::use_external_data,
                   "larger tensors live in <path>.data");
}

void bind_parameters(nb::class_<CheckpointState>& c) {
  c.def_prop_ro("parameter_names", &names_of, "in order")
      .def("has_parameter", &CheckpointState::has_parameter, nb::arg("name"))
      .def("parameter", &tensor_of, nb::arg("name"), "the tensor itself: its array() is a view that training writes to")
      .def(
          "requires_grad",
          [](const CheckpointState& s, std::string_view name) { return s.parameter(name).requires_grad; },
          nb::arg("name"))
      .def(
          "dtype",
          [](const CheckpointState& s, std::string_view name) { return static_cast<int>(s.parameter(name).dtype); },
          nb::arg("name"), "ONNX code of the element type, known for nominal parameters too")
      .def(
          "add_parameter",
          [](CheckpointState& s, std::string name, const Tensor& t, bool requires_grad) {
            s.add_parameter(std::move(name), copy_of(t), requires_grad);
          },
          nb::arg("name"), nb::arg("values"), nb::arg("requires_grad") = true, "copies the values")
      .def(
          "add_nominal",
          [](CheckpointState& s, std::string name, int dtype, bool requires_grad) {
            s.add_nominal(std::move(name), to_dtype(dtype), requires_grad);
          },
          nb::arg("name"), nb::arg("dtype"), nb::arg("requires_grad") = true)
      .def("set_parameter", &CheckpointState::set_parameter, nb::arg("name"), nb::arg("values"),
           "copies values of the same dtype and shape")
      .def("share_parameter", &CheckpointState::share_parameter, nb::arg("name"), nb::arg("values"),
           nb::arg("requires_grad") = true, "adds or replaces a parameter by this memory, which training writes to")
      .def_prop_ro("is_nominal", &CheckpointState::is_nominal)
      .def_prop_ro("is_half_updated", &CheckpointState::is_half_updated)
      .def("complete", &complete, nb::arg("tensors"), "copies one tensor per parameter, in order")
      .def("parameter_count", &CheckpointState::parameter_count, nb::arg("trainable_only") = true);
}

void bind_rest(nb::class_<CheckpointState>& c) {
  // Before `property`, whose name hides Python's decorator in the stub.
  c.def_prop_rw(
       "resume", [](CheckpointState& s) -> ResumeState& { return s.resume(); },
       [](CheckpointState& s, const ResumeState& r) { s.resume() = r; }, nb::rv_policy::reference_internal)
      .def_prop_ro(
          "optimizer_groups", [](const CheckpointState& s) { return s.optimizer_groups(); },
          "copies holding the same tensors")
      .def("set_group", &set_group, nb::arg("group"), "adds a group, or replaces the one of its name")
      .def("clear_groups", [](CheckpointState& s) { s.optimizer_groups().clear(); })
      .def_prop_ro(
          "properties", [](const CheckpointState& s) { return s.properties(); }, "a copy, sorted by name")
      .def("has_property", &CheckpointState::has_property, nb::arg("name"))
      .def(
          "property", [](const CheckpointState& s, std::string_view name) { return s.property(name); }, nb::arg("name"))
      .def("set_property", &set_property, nb::arg("name"), nb::arg("value"),
           nb::sig("def set_property(self, name: str, value: int | float | str) -> None"),
           "whole numbers are kept with 64 bits, others as float32")
      .def("remove_property", &CheckpointState::remove_property, nb::arg("name"));
}

}  // namespace

void bind_checkpoint(nb::module_& m) {
  bind_parts(m);
  nb::class_<CheckpointState> state(m, "CheckpointState",
                                    "Parameters, optimizer state and properties of a training run.");
  bind_files(state);
  bind_parameters(state);
  bind_rest(state);
  m.def("export_parameters", &export_parameters, nb::arg("state"), nb::arg("path"), NoGil(),
        "writes all parameters to a safetensors file");
  m.def("import_parameters", &import_parameters, nb::arg("state"), nb::arg("path"), NoGil(),
        "copies a safetensors file into the parameters: all of them or, when anything does not fit, none");
}
