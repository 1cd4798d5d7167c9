// A training graph ready to run within SessionOptions::max_memory.
//
// Numbers are known when inputs come. The graph is planned as it is first; should that need too much, values of the
// forward pass are made again in the backward pass (plan/recompute.hpp). The choice stays for other extents as long as
// it fits them.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "backpass/session.hpp"
#include "passes/pass.hpp"
#include "plan/program.hpp"
#include "plan/repeat.hpp"
#include "runtime/executable.hpp"
#include "training/recompute_request.hpp"

namespace backpass {

/// A program and what runs it.
struct ReadyPlan {
  std::unique_ptr<Graph> own_graph;  ///< null: the training graph itself
  const Graph* graph = nullptr;
  std::unique_ptr<Program> program;
  std::unique_ptr<Executable> executable;
  Reports reports;     ///< what is made again
  double seconds = 0;  ///< that it took to decide
};

class TrainingPlan {
 public:
  /// `forward`: the nodes of the forward pass. The graph must outlive the plan and not change. `results`: memory that
  /// runs in two halves give their outputs in, shared with other plans; null: its own.
  TrainingPlan(const Graph& graph, NodeSet forward, const SessionOptions& options, Profiler* profiler,
               std::shared_ptr<BufferPool> results = nullptr);

  /// What runs inputs of these extents. InvalidInput when they do not fit into the memory allowed, whatever is made
  /// again.
  std::shared_ptr<ReadyPlan> ready_for(std::span<const RuntimeValue> inputs);

  /// From now on what does not fit runs with as little memory as it can.
  void allow_excess();
  /// Bytes of the largest run so far that did not fit; 0 when all did.
  std::size_t excess() const;

  /// Gives arenas back; the next run makes its own.
  void release_memory();

  /// What ran last, or would.
  std::shared_ptr<ReadyPlan> current() const;

 private:
  std::shared_ptr<ReadyPlan> make_ready(std::unique_ptr<Graph> graph) const;
  std::size_t allowed(std::size_t needed);
  void grant_excess(std::size_t least, std::size_t needed);
  void order_gradients();
  std::shared_ptr<ReadyPlan> decide(std::span<const RuntimeValue> inputs, std::size_t needed, std::size_t budget);

  const Graph& graph_;
  NodeSet forward_;
  SessionOptions options_;
  Profiler* profiler_;
  std::shared_ptr<BufferPool> results_;
  bool has_backward_;
  RecomputeRequest request_;
  std::unique_ptr<Graph> ordered_;  // the graph with gradients as early as can be: what choices are made in
  NodeSet ordered_forward_;
  std::shared_ptr<ReadyPlan> plain_;
  mutable std::mutex mutex_;
  std::shared_ptr<ReadyPlan> current_;
  std::size_t most_needed_ = 0;  // without making anything again
  std::size_t granted_ = 0;      // to runs that did not fit
  bool may_exceed_ = false;
};

}  // namespace backpass
