// What a binding says of a training graph, as plan/recompute.hpp wants to know it.
#pragma once

#include <memory>
#include <span>

#include "plan/rehearsal.hpp"
#include "plan/repeat.hpp"
#include "runtime/binding.hpp"

namespace backpass {

/// Operations of every step under these extents.
std::vector<double> count_operations(const Program& program, const Binding& binding);

/// `parts`: the Bindings of a run, the last of which knows all values.
Outline make_outline(const Program& program, std::span<const std::shared_ptr<const Binding>> parts,
                     const NodeSet& forward, const std::vector<double>& operations);

}  // namespace backpass
