// What a Trainer consists of.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backpass/trainer.hpp"
#include "training/optimizer_pass.hpp"
#include "training/step_model.hpp"
#include "training/trainer_parallel.hpp"
#include "training/trainer_source.hpp"

namespace backpass {

struct Trainer::Impl {
  Impl(std::shared_ptr<CheckpointState> s, const TrainerOptions& o);

  /// A model, planned, and what becomes of its outputs.
  struct Program {
    std::unique_ptr<StepModel> model;
    std::vector<std::size_t> returned;
    std::vector<TrainerSource::Assignment> assignments;
    std::vector<std::size_t> order;  ///< of each gradient of the model its place in trained
    std::vector<ValueInfo> inputs;   ///< without the scale of the loss
  };

  std::shared_ptr<CheckpointState> state;
  TrainerOptions options;
  std::vector<Program> programs;
  std::vector<Program> eval_programs;
  std::vector<std::string> trained;
  std::vector<std::string> untrained;          // parameters
  std::unique_ptr<OptimizerPass> optimizer;    // null until there is a program
  std::unique_ptr<ParallelTraining> parallel;  // null: alone
  std::vector<Tensor> gradients;               // as trained; none until somebody needs them all at a time
  RandomSource random;
  RandomSource eval_random;  // evaluating leaves the other one where it was
  std::int64_t steps = 0;
  std::int64_t accumulated = 0;  // steps since the last update
  double loss_scale = 1;
  double last_norm = std::numeric_limits<double>::quiet_NaN();
  std::string obstacle;  // why the last step updated after it had all gradients; empty: it did not

  std::size_t add(const TrainerModel& model);
  std::size_t add_eval(const TrainerModel& model, bool to_inference);
  Program& program(std::size_t number);
  Program& eval_program(std::size_t number);
  OptimizerGroup& group();

  Result train_step(Program& program, std::span<const RuntimeValue> inputs, double rate);
  std::vector<RuntimeValue> eval_step(Program& program, std::span<const RuntimeValue> inputs);
  PlanReport plan(Program& program, std::span<const RuntimeValue> inputs);
  void drop_gradients();
  void resume_random();
  void gather_optimizer_state();

 private:
  struct Updated {
    std::vector<Tensor> parameters;
    std::vector<std::vector<Tensor>> states;
  };

  /// Tells the state where the random numbers are when a step is over: done or failed, it has counted.
  struct RememberRandom {
    Impl& impl;
    ~RememberRandom() { impl.remember_random(); }
  };

  void remember_random();
  void train_these(const StepModel& model);
  void make_states();
  AdasumUpdate* adasum() const { return parallel != nullptr ? parallel->adasum() : nullptr; }
  bool is_sharded() const { return parallel != nullptr && parallel->is_sharded(); }
  void start_parallel(const StepModel& model, const std::vector<WeightSettings>& settings);
  std::vector<std::size_t> order_of(const StepModel& model) const;
  std::optional<UpdateRule> rule_for(const std::vector<std::size_t>& order) const;
  std::vector<Tensor> tensors(const std::vector<std::string>& names) const;
  Updated updated() const;
  std::vector<Tensor> gradients_of(const Program& program);
  std::vector<Tensor> new_statistics(const StepModel& model) const;
  std::vector<RuntimeValue> with_scale(const Program& program, std::span<const RuntimeValue> inputs) const;
  std::string obstacle_for(Program& program, std::span<const RuntimeValue> inputs, const Updated& updated);

  std::vector<RuntimeValue> run(Program& program, std::span<const RuntimeValue> inputs);
  std::vector<RuntimeValue> run_and_update(Program& program, std::span<const RuntimeValue> inputs, double rate,
                                           const Updated& all);
  /// True: weights have moved. False: gradients were not finite.
  bool update(double rate, bool& all_finite);
  void move_weights(const OptimizerPass::Step& step);
  double gradient_scale() const;
  std::vector<RuntimeValue> finish(const Program& program, std::vector<RuntimeValue> results,
                                   const std::vector<Tensor>& statistics);
};

}  // namespace backpass
