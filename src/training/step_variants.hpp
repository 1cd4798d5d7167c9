// The graphs that a step model runs as: one for each choice of passes that the data of a batch are worth
// (training/data_choice.hpp). Each is built when it is needed first.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "training/data_choice.hpp"
#include "training/step_source.hpp"
#include "training/step_variant.hpp"

namespace backpass {

/// What a step does: give gradients, or update parameters with them.
enum class StepPurpose : std::uint8_t { gradients, update };

class StepVariants {
 public:
  using Names = std::vector<std::string>;
  using Plan = std::shared_ptr<TrainingPlan>;

  /// Source and options must outlive this. `profiler` may be null.
  StepVariants(const StepSource& source, const SessionOptions& options, Profiler* profiler);

  /// As things stand: with the passes that the latest batch was worth.
  StepVariant& latest() { return get(last_.passes); }

  /// From now on gradients are added to buffers, which steps read behind the other inputs, with a flag.
  void accumulate() { accumulates_ = true; }
  bool accumulates() const { return accumulates_; }

  /// From now on steps tell when the gradients of a bucket are complete: a flag per bucket follows the gradients.
  void set_buckets(std::vector<std::vector<std::size_t>> buckets);
  std::size_t bucket_count() const { return buckets_.size(); }
  /// Gradients by their numbers, as steps complete them that data decide nothing about.
  std::vector<std::size_t> completion_order() { return get({}).completion_order(); }

  /// How parameters are updated; none: they are not.
  void set_update(std::optional<UpdateRule> rule);
  /// Why there is no such step; empty: there is.
  const std::string& update_obstacle() { return get({}).update_obstacle(*rule_); }

  /// What runs these values, best for the data at their beginning, which are the inputs of the graph. What is wrong
  /// with them is found before anything is written.
  std::shared_ptr<ReadyPlan> ready_for(std::span<const RuntimeValue> values, StepPurpose purpose);
  /// The same with the passes of the latest batch, for values that may be without contents.
  std::shared_ptr<ReadyPlan> plan_for(std::span<const RuntimeValue> values, StepPurpose purpose);

  /// What became of the graph, and why passes that data decide on are not chosen.
  Reports reports();
  /// What the latest batch is like, how often which passes were chosen, and what a step takes with them.
  DataReport data_report();

 private:
  StepVariant& get(const Names& chosen);
  Plan plan_of(StepVariant& variant, StepPurpose purpose);
  std::shared_ptr<ReadyPlan> ready_if_it_fits(const Names& chosen, std::span<const RuntimeValue> values,
                                              StepPurpose purpose);
  void use(const Plan& plan, StepPurpose purpose);

  /// A plan that has an arena.
  struct Used {
    Plan plan;
    StepPurpose purpose;
    std::int64_t run;  // its last one
  };

  const StepSource& source_;
  const SessionOptions& options_;
  Profiler* profiler_;
  std::unique_ptr<DataLooker> looker_;  // null: data make no difference
  std::map<Names, std::unique_ptr<StepVariant>> variants_;
  std::optional<UpdateRule> rule_;
  bool accumulates_ = false;
  std::vector<std::vector<std::size_t>> buckets_;
  DataChoice last_;
  std::map<Names, std::int64_t> runs_;  // by what was chosen
  std::map<Names, Report> refused_;     // choices that do not fit into the memory allowed
  Plan in_use_;                         // null: nothing ran yet
  StepPurpose last_purpose_ = StepPurpose::gradients;
  double build_seconds_ = 0;
  std::vector<Used> used_;
  std::int64_t clock_ = 0;
};

}  // namespace backpass
