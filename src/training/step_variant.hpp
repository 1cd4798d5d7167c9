// What a step model runs for one choice of passes: its graph after them, and the plans of it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backpass/session.hpp"
#include "passes/manager.hpp"
#include "training/training_plan.hpp"
#include "training/update_graph.hpp"

namespace backpass {

class StepVariant {
 public:
  /// `graph`: rewritten by `passes`, which are still to lay it out for running. Its gradients belong to `trainable`.
  /// Options, names and profiler must outlive this.
  StepVariant(std::unique_ptr<Graph> graph, PassManager passes, std::span<const std::string> trainable,
              const SessionOptions& options, Profiler* profiler);

  const Graph& graph() const { return *graph_; }  ///< after passes: what execution_model() writes
  const Reports& reports() const { return reports_; }

  /// Of a step whose gradients are outputs; once it `accumulates`, of one with an accumulator behind each gradient,
  /// which reads buffers and a flag behind the other inputs.
  const std::shared_ptr<TrainingPlan>& plan(bool accumulates);

  /// From now on steps tell when the gradients of a bucket are complete; a flag per bucket follows the gradients.
  void set_buckets(std::vector<std::vector<std::size_t>> buckets);
  /// Gradients by their numbers, as steps complete them.
  std::vector<std::size_t> completion_order() const;

  /// Why there is no update_plan() by this rule; empty: there is. The rule is the same until drop_update().
  const std::string& update_obstacle(const UpdateRule& rule);
  const std::shared_ptr<TrainingPlan>& update_plan();
  void drop_update();

 private:
  std::shared_ptr<TrainingPlan> plan_of(const Graph& graph) const;
  std::unique_ptr<Graph> with_accumulators() const;

  std::span<const std::string> trainable_;
  const SessionOptions& options_;
  Profiler* profiler_;
  std::unique_ptr<Graph> graph_;
  std::unique_ptr<Graph> lowered_;                // as it is planned; gradients are outputs
  std::vector<std::unique_ptr<Graph>> stepping_;  // lowered, with accumulators or nodes that tell of buckets
  UpdateGraph updating_;                          // lowered, with updates, once it was asked for
  Reports reports_;
  std::vector<std::vector<std::size_t>> buckets_;
  bool accumulates_ = false;                      // what is planned does
  std::shared_ptr<TrainingPlan> planned_;         // of the last of `stepping_`, or of `lowered_`; null: not yet
  std::shared_ptr<TrainingPlan> planned_update_;  // of `updating_`
};

}  // namespace backpass
