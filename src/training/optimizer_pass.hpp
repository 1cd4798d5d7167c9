// An optimizer's step as one pass over all weights: they are cut together, so that many small ones cost what a large
// one does. Results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backpass/optimizer.hpp"
#include "backpass/tensor.hpp"
#include "ops/optimizers/multi_tensor.hpp"
#include "training/update_graph.hpp"

namespace backpass {

class OptimizerPass {
 public:
  using Step = OptimizerStep;

  /// One settings per weight, in the order of the tensors given to run(); or one for all.
  OptimizerPass(Algorithm algorithm, const std::vector<WeightSettings>& settings);

  /// Names of the states kept per weight, which start at 0.
  static std::vector<std::string> state_names(Algorithm algorithm);

  /// Updates weights and states in place. `states[s]` holds one tensor per weight: all of its state, or the part that
  /// lies in the range. InvalidInput when shapes or element types do not go together. Nothing interrupts it.
  void run(const Step& step, std::span<const Tensor> parameters, std::span<const Tensor> gradients,
           std::span<const std::vector<Tensor>> states) const;

  /// The same over memory whose extents somebody has checked.
  void run(const Step& step, std::span<const WeightMemory> weights) const;

  /// The same step as a node per parameter; nullopt for lamb.
  std::optional<UpdateRule> rule(double gradient_scale = 1) const;

  Algorithm algorithm() const { return algorithm_; }

 private:
  Algorithm algorithm_;
  std::vector<WeightSettings> kinds_;  ///< that differ
  std::vector<std::size_t> kind_of_;   ///< by weight
};

}  // namespace backpass
