#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "backpass/gradient.hpp"
#include "bindings.hpp"

namespace nb = nanobind;
using namespace backpass;

void bind_gradient(nb::module_& m) {
  nb::class_<GradientRequest>(m, "GradientRequest", "What to differentiate with respect to what.")
      .def(nb::init<>())
      .def_rw("wrt", &GradientRequest::wrt)
      .def_rw("outputs", &GradientRequest::outputs)
      .def_rw("seeds_as_inputs", &GradientRequest::seeds_as_inputs)
      .def_rw("standard_only", &GradientRequest::standard_only);
  m.def(
      "grad_path", [](const std::filesystem::path& p, const GradientRequest& r) { return to_bytes(grad(p, r)); },
      nb::arg("path"), nb::arg("request"));
  m.def(
      "grad_bytes", [](const nb::bytes& b, const GradientRequest& r) { return to_bytes(grad(view_of(b), r)); },
      nb::arg("model"), nb::arg("request"));
  m.def(
      "check_gradients_path",
      [](const std::filesystem::path& p, const GradientRequest& r) { return check_gradients(p, r); }, nb::arg("path"),
      nb::arg("request"));
  m.def(
      "check_gradients_bytes",
      [](const nb::bytes& b, const GradientRequest& r) { return check_gradients(view_of(b), r); }, nb::arg("model"),
      nb::arg("request"));
}
