// Runs a Program: finds or makes the Binding for the extents at hand, then executes its steps in an arena.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backpass/session.hpp"
#include "plan/program.hpp"
#include "runtime/binding.hpp"
#include "support/buffer_pool.hpp"

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
  /// The program must outlive the executable. `profiler` may be null. `results`: memory for outputs of runs in two
  /// halves, which programs with the same outputs may share; null: its own.
  Executable(const Program& program, int binding_cache, Profiler* profiler,
             std::shared_ptr<BufferPool> results = nullptr);
  ~Executable();

  const Program& program() const { return program_; }

  /// Inputs: graph inputs, then captures. Results are independent of the arena and of the inputs' memory.
  std::vector<RuntimeValue> run(std::span<const RuntimeValue> inputs) { return run(inputs, {}); }

  /// The same, writing output k into wanted[k] where that is a tensor (of the right type and extents) whose memory no
  /// input shares. An output that a node writes over an input (graph/overwriting.hpp) is that input.
  std::vector<RuntimeValue> run(std::span<const RuntimeValue> inputs, std::span<const Tensor> wanted);

  /// The same, writing outputs into tensors of the right type and extents. Allocates nothing once the binding exists.
  /// Only for programs all of whose outputs are planned; Unsupported otherwise.
  void run_into(std::span<const RuntimeValue> inputs, std::span<Tensor> outputs);

  struct State;

  /// A run that waits at the program's YieldOp, with its arena. Goes on once, or is dropped.
  class Paused {
   public:
    Paused(Executable& owner, std::vector<RuntimeValue> inputs);
    ~Paused();
    Paused(const Paused&) = delete;
    Paused& operator=(const Paused&) = delete;
    const std::vector<RuntimeValue>& inputs() const { return inputs_; }

   private:
    friend class Executable;
    Executable& owner_;
    std::unique_ptr<State> state_;
    std::vector<RuntimeValue> inputs_;
    std::size_t given_ = 0;  // outputs
    bool is_waiting_ = false;
  };

  /// Runs up to the YieldOp; `results` gets the first `count` outputs, all of which must be computed by then.
  std::unique_ptr<Paused> start(std::vector<RuntimeValue> inputs, std::size_t count,
                                std::vector<RuntimeValue>& results);

  /// Runs the rest, the YieldOp having given `seeds`, and returns the remaining outputs. The executable must be the one
  /// that started the run.
  std::vector<RuntimeValue> resume(std::unique_ptr<Paused> paused, std::span<const RuntimeValue> seeds);

  std::shared_ptr<const Binding> binding_for(std::span<const RuntimeValue> inputs);

  /// What the latest run to the end was bound to: it knows the extents of all values. Null before there was one.
  std::shared_ptr<const Binding> last_run();

  /// Gives back the memory of runs that have ended, until the next one.
  void release_memory();

  /// What is planned for these inputs; where data decide sizes, for the largest there can be.
  PlanReport plan(std::span<const RuntimeValue> inputs);

 private:
  /// What a run writes its outputs to.
  struct Targets {
    std::span<const Tensor> wanted = {};  ///< by the caller, where it is a tensor
    BufferPool* pool = nullptr;           ///< gives the others
    bool are_all_planned = false;         ///< Unsupported for an output that is not written directly
  };

  std::unique_ptr<State> take_state();
  void give_back(std::unique_ptr<State> state);
  void enter(State& state, std::shared_ptr<const Binding> binding, const Targets& targets, std::size_t outputs);
  void add_buffers(State& state, std::size_t given, bool is_resumed, const Targets& targets);
  std::shared_ptr<const Binding> next(const State& state) const;
  /// Runs to the pause, true, or to the end.
  bool run_to_pause(State& state, std::span<const RuntimeValue> inputs, const Targets& targets, std::size_t outputs);
  void run_to_end(State& state, std::span<const RuntimeValue> inputs, const Targets& targets);
  void run_all(State& state, std::span<const RuntimeValue> inputs, const Targets& targets);
  void execute(State& state, std::span<const RuntimeValue> inputs, std::size_t first, std::size_t last);
  void run_late_step(State& state, const Binding& binding, const BoundStep& step, std::span<const RuntimeValue> inputs);
  void record(State& state, std::size_t step, double start);
  RuntimeValue collect(State& state, std::size_t output, std::span<const RuntimeValue> inputs);

  const Program& program_;
  Profiler* profiler_;
  std::vector<std::vector<std::unique_ptr<Executable>>> children_;  // per step, per subgraph
  BindingCache bindings_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<State>> idle_;
  std::shared_ptr<const Binding> last_run_;
  std::shared_ptr<BufferPool> results_;  // of runs in two halves
};

}  // namespace backpass
