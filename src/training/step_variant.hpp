// What a step model runs for one choice of passes: its graph after them, and the plans of it.
#pragma once

#include <memory>
#include <span>
#include <string>

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

  /// Why there is no update_plan() by this rule; empty: there is. The rule is the same until drop_update().
  const std::string& update_obstacle(const UpdateRule& rule);
  const std::shared_ptr<TrainingPlan>& update_plan();
  void drop_update();

 private:
  std::shared_ptr<TrainingPlan> plan_of(const Graph& graph) const;
  void accumulate_in_place();

  std::span<const std::string> trainable_;
  const SessionOptions& options_;
  Profiler* profiler_;
  std::unique_ptr<Graph> graph_;
  std::unique_ptr<Graph> lowered_;       // as it is planned; gradients are outputs
  std::unique_ptr<Graph> accumulating_;  // lowered, with accumulators, once gradients were added up
  UpdateGraph updating_;                 // lowered, with updates, once it was asked for
  Reports reports_;
  std::shared_ptr<TrainingPlan> planned_;         // of `accumulating_`, or of `lowered_`
  std::shared_ptr<TrainingPlan> planned_update_;  // of `updating_`
};

}  // namespace backpass
