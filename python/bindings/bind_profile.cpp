#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "backpass/profile.hpp"
#include "bindings.hpp"

namespace nb = nanobind;
using namespace backpass;

namespace {

ProfileSummary summary(const std::vector<StepRecord>& records, const MachineLimits& limits, bool by_shapes) {
  return summarize(records, limits, by_shapes ? ProfileRows::by_shapes : ProfileRows::by_operator);
}

}  // namespace

void bind_profile(nb::module_& m) {
  nb::class_<MachineLimits::Memory>(m, "MemoryRate", "How fast so many bytes are read and written.")
      .def_ro("bytes", &MachineLimits::Memory::bytes)
      .def_ro("gbs", &MachineLimits::Memory::gbs)
      .def("__repr__", &describe_fields);
  nb::class_<MachineLimits>(m, "MachineLimits", "What a machine can do with some number of threads.")
      .def_ro("threads", &MachineLimits::threads, "0: not measured, but told.")
      .def_ro("gflops", &MachineLimits::gflops, "10^9 operations a second, of float32 products.")
      .def_ro("memory", &MachineLimits::memory, "From few bytes, which stay in a cache, to many.")
      .def("gbs", &MachineLimits::gbs, nb::arg("bytes"), "10^9 bytes a second, for a step that moves so many.")
      .def("arithmetic_us", &MachineLimits::arithmetic_us, nb::arg("flops"))
      .def("memory_us", &MachineLimits::memory_us, nb::arg("bytes"))
      .def("__repr__", &MachineLimits::text);
  m.def("machine_limits", &machine_limits, nb::arg("threads") = 0, NoGil(),
        "Measures this machine, once per number of threads and process: about 0.2 s. 0: as many as a session uses.");
  m.def("told_limits", &told_limits, nb::arg("gflops") = 0.0, nb::arg("gbs") = 0.0, nb::arg("threads") = 0, NoGil(),
        "The limits of a machine that somebody knows; what is 0 is measured.");
  nb::class_<ProfileRow>(m, "ProfileRow", "What steps of one kind come to.")
      .def_ro("op", &ProfileRow::op)
      .def_ro("shapes", &ProfileRow::shapes, "Empty for rows by operator.")
      .def_ro("calls", &ProfileRow::calls)
      .def_ro("duration_us", &ProfileRow::duration_us)
      .def_ro("arithmetic_us", &ProfileRow::arithmetic_us, "What the arithmetic alone takes at least.")
      .def_ro("memory_us", &ProfileRow::memory_us, "What reading and writing alone take at least.")
      .def_ro("limit_us", &ProfileRow::limit_us, "The longer of the two, step by step.")
      .def_ro("flops", &ProfileRow::flops)
      .def_ro("bytes", &ProfileRow::bytes)
      .def("__repr__", &describe_fields);
  nb::class_<ProfileSummary>(m, "ProfileSummary", "Recorded steps against the limits of a machine.")
      .def_ro("rows", &ProfileSummary::rows, "What takes longest first.")
      .def_ro("duration_us", &ProfileSummary::duration_us, "Of all steps.")
      .def_ro("limit_us", &ProfileSummary::limit_us, "What they would take if each reached its limit.");
  m.def("summarize", &summary, nb::arg("records"), nb::arg("limits"), nb::arg("by_shapes") = false);
}
