// What a binding says of a training graph, as plan/recompute.hpp wants to know it.
#pragma once

#include "plan/rehearsal.hpp"
#include "plan/repeat.hpp"
#include "runtime/binding.hpp"

namespace backpass {

/// Operations of every step under these extents.
std::vector<double> count_operations(const Program& program, const Binding& binding);

Outline make_outline(const Program& program, const Binding& binding, const NodeSet& forward,
                     const std::vector<double>& operations);

}  // namespace backpass
