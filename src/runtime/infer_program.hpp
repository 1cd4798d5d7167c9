// The first half of binding: what follows from the extents of the inputs before any memory is laid out.
#pragma once

#include <span>
#include <vector>

#include "runtime/binding.hpp"

namespace backpass {

/// What becomes of a step under given extents.
enum class StepKind : std::uint8_t {
  known,   ///< its results are known now; nothing is left to do
  view,    ///< its result is its input under another shape
  kernel,  ///< prepared and planned
  late,    ///< shapes depend on data: evaluated while running
};

/// Runs the shape rules of the steps with numbers, up to the first step that reads something whose size data decide
/// (`binding.end`). Fills in type and contents (where they follow from extents alone) of `binding.values`, and says for
/// every step what it needs; of steps from `binding.end` on that is not known, and late stands in for it. Throws
/// InvalidInput with the node's label when shapes do not fit.
std::vector<StepKind> infer_program(const Program& program, std::span<const RuntimeValue> inputs, Binding& binding);

/// The same from `before.end` on.
std::vector<StepKind> infer_rest(const Binding& before, std::span<const RuntimeValue> found, Binding& binding);

/// Which steps count, and for how long values are read.
struct Needs {
  static constexpr int kEnd = 1 << 30;  ///< read by the caller, after the last step
  std::vector<int> last_read;           ///< per value: the last step that reads it, kEnd, or -1
  std::vector<bool> steps;
  std::size_t count = 0;  ///< of steps
};

/// A step counts when something it gives is read by a step that counts, and is not known anyway. Many exported tensors
/// are only asked for their extents.
Needs find_needs(const Program& program, const std::vector<StepKind>& kinds);

}  // namespace backpass
