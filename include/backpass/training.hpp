// Training from artifacts, without anything but this library:
//
//   auto state = std::make_shared<backpass::CheckpointState>(backpass::CheckpointState::load("checkpoint"));
//   backpass::TrainingSession session(state, {.training = "training_model.onnx", .eval = "eval_model.onnx",
//                                             .optimizer = "optimizer_model.onnx"});
//   for (const Batch& batch : data) {
//     float loss = session.train_step({batch.x, batch.labels})[0].tensor.as<float>()[0];
//     session.optimizer_step();
//     session.lazy_reset_grad();
//   }  // or, in less memory: session.train_and_update({batch.x, batch.labels})
//   state->save("checkpoint", /*include_optimizer_state=*/true);
//   session.export_model_for_inferencing("model.onnx", {"logits"});
//
// A session belongs to one thread at a time; each call uses SessionOptions::num_threads. Parameters live in the
// checkpoint state, which session and caller share. A call that throws leaves parameters and optimizer as they were;
// where that is a training step, the optimizer refuses its gradients, of which some may be written and others not. Only
// train_and_update may fail when some parameters have moved and others have not: its message says so, and the state is
// refused from then on (CheckpointState::is_half_updated).
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backpass/checkpoint.hpp"
#include "backpass/parallel.hpp"
#include "backpass/session.hpp"
#include "backpass/tensor.hpp"

namespace backpass {

/// A model file, or the bytes of one.
struct ModelSource {
  std::filesystem::path path;
  std::string bytes;

  ModelSource() = default;
  ModelSource(const char* file) : path(file) {}                       // NOLINT: implicit on purpose
  ModelSource(const std::string& file) : path(file) {}                // NOLINT: implicit on purpose
  ModelSource(std::filesystem::path file) : path(std::move(file)) {}  // NOLINT: implicit on purpose
  static ModelSource from_bytes(std::string_view serialized) {
    ModelSource source;
    source.bytes = serialized;
    return source;
  }
  bool empty() const { return path.empty() && bytes.empty(); }
};

struct TrainingArtifacts {
  ModelSource training;
  ModelSource eval;       ///< may be left out; then eval_step and export throw
  ModelSource optimizer;  ///< may be left out; then everything about the optimizer throws
};

class TrainingSession {
 public:
  /// Optimizer state, learning rate, scheduler and random numbers go on where the checkpoint left them.
  TrainingSession(std::shared_ptr<CheckpointState> state, const TrainingArtifacts& artifacts,
                  const SessionOptions& options = {});
  ~TrainingSession();
  TrainingSession(TrainingSession&&) noexcept;
  TrainingSession& operator=(TrainingSession&&) noexcept;

  /// For a session made without an optimizer model.
  void add_optimizer(const ModelSource& optimizer);

  const std::shared_ptr<CheckpointState>& state() const;
  bool has_eval_model() const;
  bool has_optimizer() const;

  /// Inputs and outputs the user deals with: no parameters, no gradients.
  const std::vector<ValueInfo>& inputs(bool training = true) const;
  const std::vector<ValueInfo>& outputs(bool training = true) const;

  /// Forward and backward. The first step and the first one after lazy_reset_grad overwrite the gradients, others add
  /// to them. Inputs in the order of inputs(); an optional input may be left empty.
  std::vector<RuntimeValue> train_step(std::span<const RuntimeValue> inputs);
  std::vector<RuntimeValue> eval_step(std::span<const RuntimeValue> inputs);
  void lazy_reset_grad();

  /// train_step, optimizer_step and lazy_reset_grad in one, to the same bits. Each parameter is updated as soon as its
  /// gradient is complete and nothing reads its old value any more, so that gradients come one after the other, in the
  /// arena, instead of staying there all at once. From the first update on the call is not interrupted. Where all
  /// gradients are needed at a time (some were added up before, the optimizer clips by their norm) the steps are done
  /// one after the other: plan_update and pass_reports say why.
  std::vector<RuntimeValue> train_and_update(std::span<const RuntimeValue> inputs);

  /// The gradient accumulated so far (a handle: later steps change it), or nullopt for a frozen parameter and after
  /// train_and_update. Throws for an unknown name.
  std::optional<Tensor> gradient(std::string_view parameter) const;

  /// One update of all trainable parameters, in place.
  void optimizer_step();
  std::int64_t optimizer_steps() const;  ///< completed ones
  void set_learning_rate(float rate);
  float learning_rate() const;

  /// The rate grows from 0 to `initial_rate` over the first `warmup` updates and falls to 0 at `total`; it follows at
  /// each scheduler_step.
  void register_linear_scheduler(std::int64_t warmup, std::int64_t total, float initial_rate);
  void scheduler_step();

  /// From now on gradients are averages over all processes of the communicator: each bucket of them is on its way as
  /// soon as backward has completed it. All processes have to call it, and make the same calls afterwards. Parameters,
  /// optimizer state and seed become those of rank 0, the seed plus the rank. Gradients that were added up are dropped.
  void set_communicator(std::shared_ptr<Communicator> communicator, const ParallelOptions& options = {});
  /// False: training steps keep their gradients to themselves. They are exchanged by the next step that is told to, or
  /// by optimizer_step: what to say of all steps of an accumulation but the last.
  void set_exchanges(bool exchanges);
  /// The memory that gradients lie in, piece by piece as it is sent: each a tensor of one dimension, in the order in
  /// which backward completes them. Empty without a communicator.
  std::vector<Tensor> gradient_buckets() const;
  /// Where each process keeps a share of the optimizer's state (ParallelOptions::zero_stage): puts all of it into the
  /// checkpoint state, to be saved; the next update takes it out again. All processes have to call it.
  void gather_optimizer_state();

  /// Elements of all parameters together.
  std::int64_t parameters_size(bool trainable_only = true) const;
  /// All parameters one after the other, in the order of the training model's inputs. float32 only.
  Tensor contiguous_parameters(bool trainable_only = false) const;
  /// The reverse. Completes a nominal state (which needs trainable_only = false).
  void copy_to_parameters(const Tensor& buffer, bool trainable_only = true);

  /// The eval model with the present parameters built in, cut down to what the named outputs need.
  void export_model_for_inferencing(const std::filesystem::path& path, std::span<const std::string> outputs) const;

  /// The training model with everything left out that need not be computed, as a training model of the same inputs,
  /// outputs and parameters. What only data can tell (rows without a label, padding) it finds out itself in every step,
  /// so it is right for all data, and best where much can be left out. Operators of domain `backpass` in it are known
  /// to Backpass alone. Unsupported, saying why, where the model's gradients are not just the derivative of its loss.
  void export_model_for_training(const std::filesystem::path& path) const;

  /// The plan of a training step for these inputs, and what is held beside it.
  PlanReport plan(std::span<const RuntimeValue> inputs) const;
  /// The same of train_and_update, as things stand.
  PlanReport plan_update(std::span<const RuntimeValue> inputs) const;
  /// What rewriting passes did to the training model, and what its backward pass makes again
  /// (SessionOptions::max_memory).
  std::vector<Report> pass_reports() const;
  /// How training steps were decided on by the data of their batches.
  DataReport data_report() const;
  /// The training model after rewriting, before it is laid out for running, as a serialized ONNX model that an
  /// InferenceSession can load: parameters are inputs; behind the outputs come gradients and new values of statistics.
  std::string execution_model() const;
  /// Steps recorded since the last call (needs SessionOptions::profile).
  std::vector<StepRecord> take_profile() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Restarts the random numbers of everything that was not restored from a checkpoint.
void set_seed(std::int64_t seed);

}  // namespace backpass
