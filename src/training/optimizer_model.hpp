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
#include "ops/optimizers/optimizer.hpp"
#include "training/update_graph.hpp"

namespace backpass {

class OptimizerModel {
 public:
  /// InvalidInput when the model is not one that ONNX Runtime's training API would take.
  explicit OptimizerModel(const onnx_io::ModelProto& model);

  /// Names of the states kept per parameter: momentum0 and momentum1 for AdamW, none for SGD.
  std::vector<std::string> state_names() const;

  /// The same step as a node per parameter; nullopt when it takes all gradients together (clips_gradients()).
  std::optional<UpdateRule> rule() const;
  bool clips_gradients() const { return clips_; }  ///< by their common norm

  /// Updates parameters in place. `states[s]` holds one tensor per parameter. `step` counts from 1.
  void step(double rate, std::int64_t step, std::span<const Tensor> parameters, std::span<const Tensor> gradients,
            std::span<const std::vector<Tensor>> states) const;

 private:
  enum class Kind : std::uint8_t { adamw, sgd };
  void clip(std::span<const Tensor> gradients) const;

  Kind kind_ = Kind::adamw;
  AdamW settings_;
  bool clips_ = false;
  double max_norm_ = 1;
};

}  // namespace backpass
