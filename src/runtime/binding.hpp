// A Program with numbers: extents, places in memory, prepared kernels. Made once per set of input extents, then shared
// read-only by all runs that have them.
//
// Where data decide a size (how many elements are not zero), a Binding ends before the first step that has to know it.
// The rest of the program is a Binding of its own, made when a run gets there and kept per size: it is planned like
// everything else, in what is free of the arena and in a further block of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
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
    arena,     ///< at an offset of a block of the arena
    output,    ///< in an output buffer
    late,      ///< made while running; its address is only known then
  };
  Kind kind = Kind::none;
  int index = 0;           ///< of the input, output, late value or block of the arena
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
  Place scratch;  ///< in the arena
  std::size_t scratch_bytes = 0;
  std::vector<std::size_t> late_pointers;  ///< pointers (relative) to fill in just before the step
  std::vector<int> late_outputs;           ///< late index per output; -1: none
  std::vector<int> release;                ///< late values nobody reads afterwards
};

/// An output, and how it is obtained when a run has ended.
struct BoundOutput {
  int value = 0;
  int buffer = -1;        ///< index of the output buffer it is written to directly; -1: it is copied
  int part = -1;          ///< number of the Binding that computes it; -1: a later one
  bool is_input = false;  ///< it is an input, with new contents
  bool is_early = false;  ///< its buffer is written to before the pause, though it is handed out after it
};

/// A Memory of the program with numbers.
struct Storage {
  Place place;  ///< kind none until a step writes it, arena until it is given to an output
  std::size_t bytes = 0;
  int first = -1;
  int last = -1;
};

/// What the rest of the program takes over from a Binding that ends early.
struct Handover {
  struct Fact {
    bool is_stored = false;  ///< in its memory
    int late = -1;           ///< number of the late value it is, or looks at
  };
  std::vector<Fact> facts;                       ///< per value
  std::vector<int> storage_of_memory;            ///< its own number, or that of the operand's that it was written over
  std::vector<Storage> storages;                 ///< per memory of the program
  std::vector<int> late_last;                    ///< per late value: the last step that reads it
  std::vector<std::pair<int, Type>> open_types;  ///< of values whose extents are still not known
  std::map<std::string, Dim> symbols;
};

struct Binding;

/// Bindings by the types of what they were made for; the least recently used goes first.
class BindingCache {
 public:
  using Make = std::function<std::unique_ptr<const Binding>()>;

  explicit BindingCache(int capacity) : capacity_(static_cast<std::size_t>(std::max(1, capacity))) {}

  int capacity() const { return static_cast<int>(capacity_); }
  std::shared_ptr<const Binding> get(std::span<const RuntimeValue> values, const Make& make);

 private:
  struct Cached {
    std::vector<std::int64_t> key;
    std::shared_ptr<const Binding> binding;
  };

  std::shared_ptr<const Binding> find(std::span<const RuntimeValue> values);

  std::size_t capacity_;
  std::mutex mutex_;
  std::list<Cached> bindings_;  // most recently used first
};

struct Binding {
  const Program* program = nullptr;
  int part = 0;            ///< how many Bindings come before it
  int first = 0;           ///< step of the program that it begins with
  int end = 0;             ///< the step it ends before
  std::vector<int> found;  ///< values whose extents its steps find out; the rest of the program depends on them
  std::vector<std::optional<Dims>> most;  ///< the largest extents each of them can have, where that is known
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
  std::vector<std::size_t> blocks;  ///< bytes of each block of the arena; its own is the last one
  PlanReport report;

  // Where the program goes on after `end`:
  Handover handover;
  std::unique_ptr<BindingCache> rest;  ///< null: this is all

  std::size_t arena_bytes() const { return std::accumulate(blocks.begin(), blocks.end(), std::size_t{0}); }
};

/// Works out everything for these inputs (graph inputs, then captures). Only types and extents are used, not contents.
/// Throws InvalidInput with the node's label when shapes do not fit.
/// `keep` is how many Bindings of the rest are kept.
std::unique_ptr<Binding> make_binding(const Program& program, std::span<const RuntimeValue> inputs, int keep = 16);

/// The Binding of what comes after `before`, whose steps found these values (in the order of Binding::found).
std::shared_ptr<const Binding> rest_of(const Binding& before, std::span<const RuntimeValue> found);

/// The Bindings of a run that finds the largest sizes there can be, as far as bounds of those are known and the steps
/// fit together at them.
std::vector<std::shared_ptr<const Binding>> at_most(std::shared_ptr<const Binding> binding);

/// What the Bindings of one run say, with text, buffers and bytes in use.
PlanReport describe_plan(std::span<const std::shared_ptr<const Binding>> parts);

/// There is not enough memory for the arena: says what takes most of it.
[[noreturn]] void fail_for_arena(const Binding& binding);

}  // namespace backpass
