// What a program takes, as an expression and for given sizes.
#pragma once

#include <span>

#include "backpass/memory.hpp"
#include "graph/graph.hpp"
#include "runtime/executable.hpp"

namespace backpass {

/// The bytes for these sizes, too, unless none are given where the inputs leave some open. InvalidInput for a size that
/// is missing, below 0, or of no input.
ArenaNeed arena_need(Executable& executable, std::span<Value* const> inputs, const Sizes& sizes);

}  // namespace backpass
