// The graphs that a module runs as: one for each set of outputs that gradients arrive for, and for each choice of
// passes that the data of a batch are worth (training/data_choice.hpp). Each is built when it is needed first.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "passes/manager.hpp"
#include "support/buffer_pool.hpp"
#include "training/data_choice.hpp"
#include "training/module_graph.hpp"
#include "training/read_later.hpp"
#include "training/training_plan.hpp"

namespace backpass {

/// Of each output, whether a gradient arrives for it.
using OutputMask = std::vector<bool>;

struct ModuleVariant {
  OutputMask seeded;
  std::vector<std::string> chosen;  ///< passes that data made worthwhile
  std::size_t number = 0;           ///< in the order they were built
  ModuleGraph module;
  PassManager passes;
  std::unique_ptr<Graph> lowered = nullptr;  ///< the module's graph as it is planned
  ReadLater later = {};
  std::unique_ptr<TrainingPlan> plan = nullptr;
  std::int64_t last_run = 0;  ///< of all runs of the module
};

/// What runs a batch.
struct ReadyVariant {
  std::shared_ptr<ModuleVariant> variant;
  std::shared_ptr<ReadyPlan> plan;
};

/// May be used from several threads at once.
class ModuleVariants {
 public:
  using Names = std::vector<std::string>;

  /// `plain`: the module's graph as imported, which has to stay as it is. `profiler` may be null.
  ModuleVariants(const Graph& plain, std::vector<std::string> requires_grad, const SessionOptions& options,
                 Profiler* profiler);

  /// Throws listing every problem that gradients of these outputs have. Builds what the first run needs, where that
  /// does not depend on its data.
  void prepare(const OutputMask& seeded);

  /// What runs these inputs best, by a look at their data.
  ReadyVariant ready_for(const OutputMask& seeded, std::span<const RuntimeValue> inputs);
  /// For a batch that has run before, with passes chosen then. What does not fit into the memory allowed runs all the
  /// same: to refuse would come too late.
  ReadyVariant again(const OutputMask& seeded, const Names& chosen, std::span<const RuntimeValue> inputs);

  /// With the passes that the latest batch was worth; none before there was one.
  std::shared_ptr<ModuleVariant> latest(const OutputMask& seeded);

  /// The module with its gradients. Without `passes` it is a graph for other runtimes.
  ModuleGraph differentiated(const OutputMask& seeded, PassManager* passes) const;

  /// What the latest batch is like, and how often which passes were chosen so far.
  DataReport densities();
  /// The same with what steps with these gradients take; builds the graph without passes to compare with.
  DataReport data_report(const OutputMask& seeded);
  /// Why passes that data decide on are not chosen.
  Reports refusals();

 private:
  using Key = std::pair<OutputMask, Names>;

  std::shared_ptr<ModuleVariant> get(const OutputMask& seeded, const Names& chosen);
  std::shared_ptr<ModuleVariant> build(const OutputMask& seeded, const Names& chosen) const;
  bool fits(const OutputMask& seeded, const Names& chosen, std::span<const RuntimeValue> inputs);
  void refuse(const Names& chosen, const std::string& why);
  void count_run(const ModuleVariant& used, DataChoice choice);

  const Graph& plain_;
  Names requires_grad_;
  SessionOptions options_;
  Profiler* profiler_;
  DataLooker looker_;
  std::shared_ptr<BufferPool> results_ = std::make_shared<BufferPool>();  // gradients, the same of all variants
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<ModuleVariant>> variants_;
  double build_seconds_ = 0;
  DataChoice last_;
  std::map<Names, std::int64_t> runs_;  // by what was chosen
  std::map<Names, Report> refused_;     // choices that do not fit into the memory allowed
  std::int64_t clock_ = 0;              // runs of all variants
};

}  // namespace backpass
