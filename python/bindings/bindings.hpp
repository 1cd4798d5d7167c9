// One function per binding file, called by module.cpp.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <string_view>

#include "backpass/parallel.hpp"
#include "support/interruption.hpp"

/// Bytes of Python, as the engine reads them; valid while the object is.
inline std::string_view view_of(const nanobind::bytes& b) { return {b.c_str(), b.size()}; }
inline nanobind::bytes to_bytes(const std::string& s) { return nanobind::bytes(s.data(), s.size()); }

void run_signal_handlers();

/// Without the interpreter lock while it lives. What runs meanwhile on Python's main thread lets Python's signal
/// handlers run now and then, so that Ctrl-C raises KeyboardInterrupt out of it.
class Unlocked {
 private:
  nanobind::gil_scoped_release release_;
  backpass::InterruptionScope signals_{&run_signal_handlers};
};

/// The same around a bound function.
using NoGil = nanobind::call_guard<Unlocked>;

/// `Type(name=value, ...)` of everything an object shows, for __repr__.
std::string describe_fields(nanobind::handle object);

/// The engine's communicator, or any object of Python that is one (bind_parallel.cpp); null for None.
std::shared_ptr<backpass::Communicator> to_communicator(nanobind::handle h);

void bind_tensor(nanobind::module_& m);
void bind_session(nanobind::module_& m);
void bind_profile(nanobind::module_& m);
void bind_gradient(nanobind::module_& m);
void bind_training(nanobind::module_& m);
void bind_trainer(nanobind::module_& m);
void bind_training_graph(nanobind::module_& m);
void bind_ops(nanobind::module_& m);
void bind_module(nanobind::module_& m);
void bind_passes(nanobind::module_& m);
void bind_callbacks(nanobind::module_& m);
void bind_custom(nanobind::module_& m);
void bind_checkpoint(nanobind::module_& m);
void bind_files(nanobind::module_& m);
void bind_parallel(nanobind::module_& m);
void bind_optimizer(nanobind::module_& m);
void bind_noted(nanobind::module_& m);
