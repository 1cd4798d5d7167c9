// The first half of binding: what follows from the extents of the inputs before any memory is laid out.
#pragma once

#include <span>
#include <vector>

#include "runtime/binding.hpp"

namespace backpass {

/// What becomes of a step under given extents.
enum class Fate : std::uint8_t {
  known,    ///< its results are known now; nothing is left to do
  planned,  ///< a view, or a kernel whose operands have places
  late,     ///< evaluated while running
};

/// Runs the shape rules of the steps with numbers, up to the first step that reads something whose size data decide
/// (`binding.end`). Fills in type and contents (where they follow from extents alone) of `binding.values`, and says of
/// every step what becomes of it; from `binding.end` on that is not known, and late stands in for it. Throws
/// InvalidInput with the node's label when shapes do not fit.
std::vector<Fate> infer_program(const Program& program, std::span<const RuntimeValue> inputs, Binding& binding);

/// The same from `before.end` on.
std::vector<Fate> infer_rest(const Binding& before, std::span<const RuntimeValue> found, Binding& binding);

}  // namespace backpass
