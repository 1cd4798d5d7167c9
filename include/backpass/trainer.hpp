// One call per training step: forward, loss, backward, accumulation, clipping, optimizer.
//
//   auto state = backpass::Trainer::state_of("model.onnx", "loss");  // its weights
//   backpass::Trainer trainer(state, {.algorithm = backpass::Algorithm::adam});
//   const std::size_t program = trainer.add_model({.model = "model.onnx", .loss = "loss", .outputs = {"loss"}});
//   for (const Batch& batch : data) {
//     float loss = trainer.train_step(program, {batch.x, batch.labels}, 1e-3).outputs[0].tensor.as<float>()[0];
//   }
//   state->save("checkpoint", /*include_optimizer_state=*/true);
//
// A trainer may hold several programs over the same weights: one model for different extents, or different outputs of
// it. They share gradients that are being accumulated, the state of the optimizer and random numbers.
//
// A trainer belongs to one thread at a time. A step that throws leaves weights and optimizer as they were, unless it
// updates weights while it computes gradients: then its message says so, and the state is refused from then on
// (CheckpointState::is_half_updated). Where it throws in the midst of an accumulation, that begins anew.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backpass/checkpoint.hpp"
#include "backpass/optimizer.hpp"
#include "backpass/parallel.hpp"
#include "backpass/session.hpp"
#include "backpass/training.hpp"

namespace backpass {

/// Forward pass and loss. Initializers and inputs that the state holds by name are parameters.
struct TrainerModel {
  ModelSource model;
  std::string loss;                  ///< the result of a node, a scalar; not needed to evaluate
  std::vector<std::string> outputs;  ///< what a step returns, in order: the loss only if it is among them
  /// Outputs that replace parameters when a training step is done: new values of a module's buffers.
  std::map<std::string, std::string> assigned;
};

struct TrainerOptions {
  Algorithm algorithm = Algorithm::adam;
  WeightSettings defaults;
  std::map<std::string, WeightSettings, std::less<>> by_weight;
  std::int64_t accumulation_steps = 1;         ///< steps whose gradients are averaged for an update
  bool clips_gradients = false;                ///< by the norm of all of them: see WeightSettings::max_norm
  bool skips_non_finite = false;               ///< gradients with an infinity or NaN update nothing
  bool scales_loss = false;                    ///< gradients are those of loss * loss_scale(), divided by it
  std::shared_ptr<Communicator> communicator;  ///< to those that train the same model on other data; null: none
  ParallelOptions parallel;
  SessionOptions session;
};

class Trainer {
 public:
  /// Optimizer state and random numbers go on where the checkpoint left them.
  Trainer(std::shared_ptr<CheckpointState> state, const TrainerOptions& options);
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;

  /// The weights of a model: initializers that its loss depends on differentiably, trained unless `frozen` names them
  /// or they are scalars, which are constants as a rule, and the frozen running statistics of batch normalisations.
  /// InvalidInput for a frozen name that is no initializer.
  static std::shared_ptr<CheckpointState> state_of(const ModelSource& model, const std::string& loss,
                                                   std::span<const std::string> frozen = {});

  /// Numbers of programs for train_step and eval_step. All training programs have to train the same weights.
  /// `to_inference`: dropout and batch normalisation work as they do when evaluating.
  std::size_t add_model(const TrainerModel& model);
  std::size_t add_eval_model(const TrainerModel& model, bool to_inference = true);

  /// What the user gives: those inputs that are needed, in the order of the model.
  const std::vector<ValueInfo>& inputs(std::size_t program) const;
  const std::vector<ValueInfo>& eval_inputs(std::size_t program) const;
  /// In the order of gradients and updates.
  const std::vector<std::string>& trained() const;

  struct Result {
    std::vector<RuntimeValue> outputs;
    bool updated = false;    ///< this was the last step of an accumulation, and its gradients were used
    bool all_finite = true;  ///< gradients, where somebody looked: see skips_non_finite and clips_gradients
  };
  /// `rate`: of the update, if there is one.
  Result train_step(std::size_t program, std::span<const RuntimeValue> inputs, double rate);
  std::vector<RuntimeValue> eval_step(std::size_t program, std::span<const RuntimeValue> inputs);

  std::int64_t steps() const;    ///< training steps
  std::int64_t updates() const;  ///< completed ones
  void set_steps(std::int64_t steps);
  void set_updates(std::int64_t updates);
  double loss_scale() const;
  void set_loss_scale(double scale);
  double last_norm() const;  ///< of the gradients of the last update, before clipping; NaN when it was not needed
  /// Begins an accumulation anew.
  void drop_gradients();
  /// Random numbers go on from where the state says now (CheckpointState::resume, kept up to date by every step).
  void resume_random();
  /// Where each process keeps a share of the optimizer's state (ParallelOptions::zero_stage): puts all of it into the
  /// checkpoint state, to be saved; the next update takes it out again. All processes have to call it.
  void gather_optimizer_state();

  PlanReport plan(std::size_t program, std::span<const RuntimeValue> inputs) const;
  std::vector<Report> pass_reports(std::size_t program) const;
  std::vector<StepRecord> take_profile(std::size_t program) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace backpass
