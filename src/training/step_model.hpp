// A training or eval model, planned and ready to run against parameters that live elsewhere.
//
// The accumulator nodes of a training model are not run at first: what they would add to a buffer becomes an output, so
// that a gradient that starts anew is written straight into its buffer by whatever computes it. Once gradients are to
// be added up, the model is planned again with an accumulator right behind each gradient, writing to the buffer in
// place: no step ever holds all gradients beside their buffers. Where the step updates the parameters as well, there
// are no buffers at all (training/update_graph.hpp).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backpass/session.hpp"
#include "onnx_io/proto.hpp"
#include "support/random_seed.hpp"
#include "training/update_graph.hpp"

namespace backpass {

/// A parameter as a model declares it.
struct ParameterInfo {
  std::string name;
  DType dtype = DType::undefined;
  Dims dims;
};

/// What an update needs beside the gradients. Parameters and states are changed in place.
struct UpdateArguments {
  double rate = 0;
  std::int64_t step = 1;                        ///< counts from 1
  std::span<const Tensor> parameters;           ///< as in StepModel::trainable()
  std::span<const std::vector<Tensor>> states;  ///< of each state those of all parameters
};

class StepModel {
 public:
  /// Inputs for which `is_parameter` holds are parameters; the rest, but for gradient buffers and the reset flag, are
  /// the user's. Throws listing every problem.
  StepModel(const onnx_io::ModelProto& model, const std::function<bool(const std::string&)>& is_parameter,
            const SessionOptions& options);
  ~StepModel();

  const std::vector<ValueInfo>& inputs() const { return inputs_; }            ///< the user's, in order
  const std::vector<ValueInfo>& outputs() const { return outputs_; }          ///< the user's, in order
  const std::vector<std::string>& parameters() const { return parameters_; }  ///< in input order
  const std::vector<ParameterInfo>& parameter_infos() const { return parameter_infos_; }
  const std::vector<std::string>& trainable() const { return trainable_; }  ///< whose gradients run() gives, in order
  const std::vector<std::string>& updated() const { return updated_; }  ///< parameters that running changes: statistics

  /// Whether gradients replace what a run finds in their buffers or are added to it.
  enum class Gradients : std::uint8_t { replace, add };

  /// Runs once. `parameters` as in parameters(); gradients go to `gradients` (as in trainable(); may be empty for an
  /// eval model), new values of updated() to `updates`. Results are the user's outputs.
  std::vector<RuntimeValue> run(std::span<const RuntimeValue> user_inputs, std::span<const Tensor> parameters,
                                Gradients mode, std::span<const Tensor> gradients, std::span<const Tensor> updates,
                                RandomSource& random);

  /// Gradients by their numbers in trainable(), as runs complete them; of which several lie together in a bucket each,
  /// whose gradients runs tell of when they are complete (support/bucket_listener.hpp).
  std::vector<std::size_t> completion_order() const;
  void set_buckets(std::vector<std::vector<std::size_t>> buckets);

  /// How run_and_update() changes parameters.
  void set_update(std::optional<UpdateRule> rule);

  /// Why there is no run_and_update(); empty: there is.
  const std::string& update_obstacle();

  /// Runs once and updates the trained among the `parameters`, each as soon as its gradient is complete; gradients are
  /// not kept. From the first update on it is not interrupted.
  std::vector<RuntimeValue> run_and_update(std::span<const RuntimeValue> user_inputs,
                                           std::span<const Tensor> parameters, const UpdateArguments& update,
                                           std::span<const Tensor> updates, RandomSource& random);

  /// True after a run_and_update() that threw when some parameters had been updated and others had not.
  bool has_half_updated() const { return has_half_updated_; }

  /// False after a run that threw while it was writing gradients, until one has replaced them all.
  bool has_whole_gradients() const { return has_whole_gradients_; }

  std::vector<StepRecord> take_profile() const;
  std::vector<Report> pass_reports() const;
  /// Of the latest batches, where data decide.
  DataReport data_report() const;
  /// The model with all that passes before differentiation leave out, those that data decide on among them, as a
  /// training model in the layout of model/training_graph.hpp. Unsupported where its gradients have to stay as they
  /// are.
  onnx_io::ModelProto rewritten_model() const;
  /// The model after rewriting, without accumulators, as a serialized ONNX model: inputs and parameters as it declares
  /// them; outputs are the user's, gradients as in trainable(), new values as in updated().
  std::string execution_model() const;
  /// As things stand: with accumulators once a run has added gradients up.
  PlanReport plan(std::span<const RuntimeValue> user_inputs, std::span<const Tensor> parameters,
                  std::span<const Tensor> gradients) const;
  /// Of run_and_update().
  PlanReport plan_update(std::span<const RuntimeValue> user_inputs, std::span<const Tensor> parameters,
                         const UpdateArguments& update);

 private:
  struct Impl;
  std::vector<RuntimeValue> arrange(std::span<const RuntimeValue> user_inputs,
                                    std::span<const Tensor> parameters) const;
  void add_buffers(std::vector<RuntimeValue>& values, std::span<const Tensor> gradients) const;

  std::vector<ValueInfo> inputs_;
  std::vector<ValueInfo> outputs_;
  std::vector<std::string> parameters_;
  std::vector<ParameterInfo> parameter_infos_;
  std::vector<std::string> trainable_;
  std::vector<std::string> updated_;
  std::string statistic_obstacle_;
  bool has_whole_gradients_ = true;
  bool has_half_updated_ = false;
  std::unique_ptr<Impl> impl_;
};

}  // namespace backpass
