#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "backpass/gradient.hpp"
#include "bindings.hpp"

namespace nb = nanobind;
using namespace backpass;

namespace {

template <class Source>
std::string unlocked_grad(const Source& model, const GradientRequest& request) {
  const Unlocked unlocked;
  return grad(model, request);
}

template <class Source>
std::vector<Problem> unlocked_check(const Source& model, const GradientRequest& request) {
  const Unlocked unlocked;
  return check_gradients(model, request);
}

}  // namespace

void bind_gradient(nb::module_& m) {
  nb::class_<GradientRequest>(m, "GradientRequest", "What to differentiate with respect to what.")
      .def(nb::init<>())
      .def_rw("wrt", &GradientRequest::wrt)
      .def_rw("outputs", &GradientRequest::outputs)
      .def_rw("seeds_as_inputs", &GradientRequest::seeds_as_inputs)
      .def_rw("standard_only", &GradientRequest::standard_only)
      .def("__repr__", &describe_fields);
  m.def(
      "grad_path",
      [](const std::filesystem::path& p, const GradientRequest& r) { return to_bytes(unlocked_grad(p, r)); },
      nb::arg("path"), nb::arg("request"));
  m.def(
      "grad_bytes", [](const nb::bytes& b, const GradientRequest& r) { return to_bytes(unlocked_grad(view_of(b), r)); },
      nb::arg("model"), nb::arg("request"));
  m.def(
      "check_gradients_path",
      [](const std::filesystem::path& p, const GradientRequest& r) { return unlocked_check(p, r); }, nb::arg("path"),
      nb::arg("request"));
  m.def(
      "check_gradients_bytes",
      [](const nb::bytes& b, const GradientRequest& r) { return unlocked_check(view_of(b), r); }, nb::arg("model"),
      nb::arg("request"));
}
