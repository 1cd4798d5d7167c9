// Runs a Program: finds or makes the Binding for the extents at hand, then executes its steps in an arena.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backpass/session.hpp"
#include "plan/program.hpp"
#include "runtime/binding.hpp"

namespace backpass {

/// Collects step records of one session; shared by its subgraphs.
class Profiler {
 public:
  void add(StepRecord record);
  std::vector<StepRecord> take();
  double now_us() const;  ///< since the profiler was made

 private:
  std::mutex mutex_;
  std::vector<StepRecord> records_;
  double start_ = 0;
};

class Executable {
 public:
  /// The program must outlive the executable. `profiler` may be null.
  Executable(const Program& program, int binding_cache, Profiler* profiler);
  ~Executable();

  /// Inputs: graph inputs, then captures. Results are independent of the arena and of the inputs' memory.
  std::vector<RuntimeValue> run(std::span<const RuntimeValue> inputs) { return run(inputs, {}); }

  /// The same, writing output k into wanted[k] where that is a tensor (of the right type and extents; its memory must
  /// not be that of an input).
  std::vector<RuntimeValue> run(std::span<const RuntimeValue> inputs, std::span<const Tensor> wanted);

  /// The same, writing outputs into tensors of the right type and extents. Allocates nothing once the binding exists.
  /// Only for programs all of whose outputs are planned; Unsupported otherwise.
  void run_into(std::span<const RuntimeValue> inputs, std::span<Tensor> outputs);

  std::shared_ptr<const Binding> binding_for(std::span<const RuntimeValue> inputs);

 private:
  struct State;
  struct Cached {
    std::vector<std::int64_t> key;
    std::shared_ptr<const Binding> binding;
  };

  std::unique_ptr<State> take_state();
  void give_back(std::unique_ptr<State> state);
  void execute(State& state, const Binding& binding, std::span<const RuntimeValue> inputs);
  void run_late_step(State& state, const Binding& binding, const BoundStep& step, std::span<const RuntimeValue> inputs);
  void record(const Binding& binding, const BoundStep& step, double start);
  RuntimeValue collect(State& state, const Binding& binding, const BoundOutput& output,
                       std::span<const RuntimeValue> inputs, std::span<const Tensor> buffers);

  const Program& program_;
  int binding_cache_;
  Profiler* profiler_;
  std::vector<std::vector<std::unique_ptr<Executable>>> children_;  // per step, per subgraph
  std::mutex mutex_;
  std::list<Cached> bindings_;  // most recently used first
  std::vector<std::unique_ptr<State>> idle_;
};

}  // namespace backpass
