// backpass._core: the C++ engine seen from Python. One bind_x(m) per binding file; no logic here.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_core, m) {
  m.doc() = "The Backpass engine.";
  m.attr("version") = BACKPASS_VERSION;
}
