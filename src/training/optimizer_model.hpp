// An optimizer model (AdamWOptimizer or SGDOptimizerV2 over sequences of tensors), run without its graph: one pass
// over all parameters, in place.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backpass/tensor.hpp"
#include "onnx_io/proto.hpp"
#include "training/optimizer_pass.hpp"
#include "training/update_graph.hpp"

namespace backpass {

class OptimizerModel {
 public:
  /// InvalidInput when the model is not one that ONNX Runtime's training API would take.
  explicit OptimizerModel(const onnx_io::ModelProto& model);

  /// Names of the states kept per parameter: momentum0 and momentum1 for AdamW, none for SGD.
  std::vector<std::string> state_names() const { return OptimizerPass::state_names(algorithm_); }

  /// The same step as a node per parameter; nullopt when it takes all gradients together (clips_gradients()).
  std::optional<UpdateRule> rule() const;
  bool clips_gradients() const { return max_norm_.has_value(); }  ///< by their common norm

  /// Updates parameters in place. `states[s]` holds one tensor per parameter. `step` counts from 1. Gradients are
  /// multiplied by `gradient_scale` when they are used, and when their norm is taken.
  void step(double rate, std::int64_t step, std::span<const Tensor> parameters, std::span<const Tensor> gradients,
            std::span<const std::vector<Tensor>> states, double gradient_scale = 1) const;

  Algorithm algorithm() const { return algorithm_; }
  const WeightSettings& settings() const { return settings_; }
  const std::optional<double>& max_norm() const { return max_norm_; }

 private:
  Algorithm algorithm_ = Algorithm::adam;
  WeightSettings settings_;
  std::optional<double> max_norm_;
};

}  // namespace backpass
