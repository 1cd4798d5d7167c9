// backpass._core: the C++ engine seen from Python. One bind_x(m) per binding file; no logic here.
#include <nanobind/nanobind.h>
#include <unistd.h>

#include "backpass/cancel.hpp"
#include "bindings.hpp"
#include "support/printable.hpp"

namespace nb = nanobind;

/// Only the main thread runs them; others need not wait for the lock.
void run_signal_handlers() {
  if (::gettid() != ::getpid()) return;
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

namespace {

/// An exception of Python for one of C++. Messages may hold pieces of damaged files; Python takes UTF-8 only.
template <class E>
nb::object bind_exception(nb::module_& m, const char* name, nb::handle base) {
  nb::exception<E> made(m, name, base);
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void* type) {
        try {
          std::rethrow_exception(thrown);
        } catch (const E& e) {
          PyErr_SetString(static_cast<PyObject*>(type), backpass::readable(e.what()).c_str());
        }
      },
      made.ptr());
  return made;
}

}  // namespace

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // sessions in global variables outlive the interpreter
  m.doc() = "The Backpass engine.";
  m.attr("version") = BACKPASS_VERSION;
  nb::object error = bind_exception<backpass::Error>(m, "Error", PyExc_RuntimeError);
  bind_exception<backpass::InvalidInput>(m, "InvalidInput", error);
  bind_exception<backpass::Unsupported>(m, "Unsupported", error);
  bind_exception<backpass::Cancelled>(m, "Cancelled", error);
  bind_exception<backpass::InternalBug>(m, "InternalBug", error);
  bind_tensor(m);
  bind_passes(m);
  bind_session(m);
  bind_profile(m);
  bind_gradient(m);
  bind_training_graph(m);
  bind_parallel(m);
  bind_training(m);
  bind_trainer(m);
  bind_ops(m);
  bind_module(m);
  bind_callbacks(m);
  bind_custom(m);
  bind_checkpoint(m);
  bind_files(m);
  bind_optimizer(m);
  bind_noted(m);
}
