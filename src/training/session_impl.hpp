// What a TrainingSession consists of.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backpass/training.hpp"
#include "training/linear_schedule.hpp"
#include "training/optimizer_model.hpp"
#include "training/step_model.hpp"
#include "training/trainer_parallel.hpp"

namespace backpass {

struct TrainingSession::Impl {
  Impl(std::shared_ptr<CheckpointState> s, const TrainingArtifacts& artifacts, const SessionOptions& o);

  std::shared_ptr<CheckpointState> state;
  SessionOptions options;
  std::unique_ptr<StepModel> training;
  std::unique_ptr<StepModel> eval;
  std::optional<onnx_io::ModelProto> eval_proto;
  std::unique_ptr<OptimizerModel> optimizer;
  std::optional<LinearSchedule> schedule;
  RandomSource random;       // of training steps: what a checkpoint keeps
  RandomSource eval_random;  // evaluating leaves the other one where it was
  float rate = 0.001F;
  bool overwrite = true;
  bool has_gradients = true;                             // until train_and_update has used them up
  std::map<std::string, Tensor, std::less<>> gradients;  // made when somebody wants them
  std::vector<std::string> untrained;                    // parameters
  std::unique_ptr<ParallelTraining> parallel;            // null: alone
  bool exchanges = true;                                 // gradients with other processes, in each step
  bool are_exchanged = false;                            // those at hand
  double gradient_scale = 1;                             // what those at hand are still to be multiplied by
  std::string obstacle;  // why the last train_and_update did one step after the other; empty: it did not

  void add_optimizer(const ModelSource& source);
  void allocate_momentums();
  OptimizerGroup& group();
  std::vector<Tensor> tensors(const std::vector<std::string>& names) const;

  void require_parameters(const char* what) const;
  void require_gradients(const char* what) const;
  void require_optimizer() const;

  const Tensor& gradient_of(const std::string& name);
  void set_rate(float value);

  void set_communicator(std::shared_ptr<Communicator> communicator, const ParallelOptions& options);
  void gather_optimizer_state();
  /// Whether this process has its share of them only.
  bool has_shared_out_gradients() const { return are_exchanged && is_sharded(); }
  void settle_gradients();

  std::vector<RuntimeValue> train(std::span<const RuntimeValue> inputs);
  void step();
  std::vector<RuntimeValue> train_and_update(std::span<const RuntimeValue> inputs);

  PlanReport plan(std::span<const RuntimeValue> inputs) const;
  PlanReport plan_update(std::span<const RuntimeValue> inputs);
  std::vector<Report> pass_reports() const;

 private:
  /// Tells the state where the random numbers are when a step is over: done or failed, it has counted.
  struct RememberRandom {
    Impl& impl;

    ~RememberRandom() { impl.remember_random(); }
  };

  bool is_sharded() const { return parallel != nullptr && parallel->is_sharded(); }
  void share_optimizer();
  void note_exchange();
  void exchange_late();
  void sharded_step();
  void resume_rate();
  void remember_random();
  void count_step();
  std::vector<Tensor> gradient_buffers();
  std::vector<std::vector<Tensor>> optimizer_states();  ///< of each state those of all trained parameters
  std::vector<Tensor> new_statistics() const;           ///< memory for them
  void keep_statistics(const std::vector<Tensor>& statistics);

  /// What an update changes.
  struct Updated {
    std::vector<Tensor> parameters;
    std::vector<std::vector<Tensor>> states;
  };

  /// Why a step has to compute all gradients before it updates parameters; empty: it has not.
  std::string obstacle_for(std::span<const RuntimeValue> inputs, const Updated& updated);
  std::vector<RuntimeValue> update_while_training(std::span<const RuntimeValue> inputs, const Updated& updated);
  void add_held(PlanReport& report, bool with_gradients) const;
};

}  // namespace backpass
