// backpass._core: the C++ engine seen from Python. One bind_x(m) per binding file; no logic here.
#include <nanobind/nanobind.h>
#include <unistd.h>

#include "backpass/cancel.hpp"
#include "bindings.hpp"

namespace nb = nanobind;

/// Only the main thread runs them; others need not wait for the lock.
void run_signal_handlers() {
  if (::gettid() != ::getpid()) return;
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // sessions in global variables outlive the interpreter
  m.doc() = "The Backpass engine.";
  m.attr("version") = BACKPASS_VERSION;
  nb::exception<backpass::Error> error(m, "Error", PyExc_RuntimeError);
  nb::exception<backpass::InvalidInput>(m, "InvalidInput", error);
  nb::exception<backpass::Unsupported>(m, "Unsupported", error);
  nb::exception<backpass::Cancelled>(m, "Cancelled", error);
  nb::exception<backpass::InternalBug>(m, "InternalBug", error);
  bind_tensor(m);
  bind_session(m);
  bind_gradient(m);
  bind_training_graph(m);
  bind_training(m);
  bind_ops(m);
  bind_module(m);
  bind_callbacks(m);
  bind_custom(m);
  bind_checkpoint(m);
}
