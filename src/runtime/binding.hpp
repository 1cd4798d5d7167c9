// A Program with numbers: extents, places in memory, prepared kernels. Made once per set of input extents, then shared
// read-only by all runs that have them.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backpass/session.hpp"
#include "graph/op.hpp"
#include "plan/program.hpp"

namespace backpass {

/// Where a value's elements are during a run.
struct Place {
  enum class Kind : std::uint8_t {
    none,      ///< no such value
    constant,  ///< at a fixed address
    input,     ///< in what the caller fed
    arena,     ///< at an offset of the arena
    output,    ///< in an output buffer
    late,      ///< made while running; its address is only known then
  };
  Kind kind = Kind::none;
  int index = 0;           ///< of the input, output or late value
  std::size_t offset = 0;  ///< bytes
  const void* address = nullptr;
};

/// What is known of a value under this binding.
struct BoundValue {
  bool is_known = false;  ///< a tensor whose type and extents are numbers
  DType dtype = DType::undefined;
  Dims own_dims;  ///< extents, unless there is a constant
  Place place;
  const Tensor* constant = nullptr;  ///< contents known before running (model constants, results of shape arithmetic)

  const Dims& dims() const { return constant != nullptr ? constant->dims() : own_dims; }
  std::size_t bytes() const { return byte_size(dtype, element_count(dims())); }
};

struct BoundStep {
  int step = 0;   ///< index into Program::steps
  Kernel kernel;  ///< empty: the node is evaluated at run time (late)
  std::size_t first_pointer = 0;
  std::size_t input_count = 0;
  std::size_t output_count = 0;
  std::size_t scratch_offset = 0;  ///< in the arena
  std::size_t scratch_bytes = 0;
  std::vector<std::size_t> late_pointers;  ///< pointers (relative) to fill in just before the step
  std::vector<int> late_outputs;           ///< late index per output; -1: none
  std::vector<int> release;                ///< late values nobody reads afterwards
};

/// An output, and how it is obtained when a run has ended.
struct BoundOutput {
  int value = 0;
  bool needs_copy = false;  ///< aliases an input, a constant or another output
  int buffer = -1;          ///< index of the output buffer it is written to directly; -1 otherwise
};

struct Binding {
  const Program* program = nullptr;
  std::vector<BoundValue> values;
  std::deque<Tensor> known;  ///< contents found while binding; BoundValue::constant points here or into the model
  std::vector<BoundStep> steps;
  std::vector<Place> pointers;  ///< all operands of all steps, in a row
  std::vector<BoundOutput> outputs;
  std::vector<std::size_t> output_bytes;  ///< per output buffer
  std::vector<int> late_inputs;           ///< late index of an input that is no plain tensor; -1 for the others
  /// Of a program with a YieldOp: the bound step to stop at; what it gives is addressed as further inputs.
  std::optional<std::size_t> pause;
  std::vector<int> late_seeds;  ///< late index of a result of the YieldOp whose extents are not known; else -1
  int late_count = 0;
  std::size_t arena_bytes = 0;
  PlanReport report;
};

/// Works out everything for these inputs (graph inputs, then captures). Only types and extents are used, not contents.
/// Throws InvalidInput with the node's label when shapes do not fit.
std::unique_ptr<Binding> make_binding(const Program& program, std::span<const RuntimeValue> inputs);

/// The table behind PlanReport::text.
std::string describe_plan(const Binding& binding);

/// There is not enough memory for the arena: says what takes most of it.
[[noreturn]] void fail_for_arena(const Binding& binding);

}  // namespace backpass
