// Arguments that all of training takes.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>

#include <vector>

#include "backpass/training.hpp"

/// A path, bytes, or None.
backpass::ModelSource to_source(nanobind::handle h);

/// Tensors; None for what is left out.
std::vector<backpass::RuntimeValue> to_values(const nanobind::list& items);
