// A training or eval model, planned and ready to run against parameters that live elsewhere.
//
// The accumulator nodes of a training model are not run at first: what they would add to a buffer becomes an output, so
// that a gradient that starts anew is written straight into its buffer by whatever computes it. Once gradients are to
// be added up, the model is planned again with an accumulator right behind each gradient, writing to the buffer in
// place: no step ever holds all gradients beside their buffers.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backpass/session.hpp"
#include "onnx_io/proto.hpp"
#include "support/random_seed.hpp"

namespace backpass {

/// A parameter as a model declares it.
struct ParameterInfo {
  std::string name;
  DType dtype = DType::undefined;
  Dims dims;
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

  /// False after a run that threw while it was writing gradients, until one has replaced them all.
  bool has_whole_gradients() const { return has_whole_gradients_; }

  std::vector<StepRecord> take_profile() const;
  std::vector<Report> pass_reports() const;
  /// The model after rewriting, without accumulators, as a serialized ONNX model: inputs and parameters as it declares
  /// them; outputs are the user's, gradients as in trainable(), new values as in updated().
  std::string execution_model() const;
  /// As things stand: with accumulators once a run has added gradients up.
  PlanReport plan(std::span<const RuntimeValue> user_inputs, std::span<const Tensor> parameters,
                  std::span<const Tensor> gradients) const;

 private:
  struct Impl;
  void accumulate_in_place();
  std::vector<RuntimeValue> arrange(std::span<const RuntimeValue> user_inputs, std::span<const Tensor> parameters,
                                    std::span<const Tensor> gradients) const;

  std::vector<ValueInfo> inputs_;
  std::vector<ValueInfo> outputs_;
  std::vector<std::string> parameters_;
  std::vector<ParameterInfo> parameter_infos_;
  std::vector<std::string> trainable_;
  std::vector<std::string> updated_;
  bool has_whole_gradients_ = true;
  std::unique_ptr<Impl> impl_;
};

}  // namespace backpass
