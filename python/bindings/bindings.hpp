// One function per binding file, called by module.cpp.
#pragma once

#include <nanobind/nanobind.h>

void bind_tensor(nanobind::module_& m);
void bind_session(nanobind::module_& m);
void bind_gradient(nanobind::module_& m);
void bind_training(nanobind::module_& m);
void bind_training_graph(nanobind::module_& m);
void bind_ops(nanobind::module_& m);
void bind_checkpoint(nanobind::module_& m);
