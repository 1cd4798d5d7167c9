// A step of an optimizer over many weights at once, in place. Results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "backpass/optimizer.hpp"
#include "backpass/tensor.hpp"
#include "ops/optimizers/pieces.hpp"

namespace backpass {

/// Where a weight, its gradient and its states lie.
struct WeightMemory {
  DType dtype = DType::float32;
  std::int64_t count = 0;
  void* weight = nullptr;
  const void* gradient = nullptr;
  void* first = nullptr;  ///< states, where the optimizer has them
  void* second = nullptr;
  std::int64_t state_begin = 0;  ///< the element of the weight that states begin with

  std::int64_t size() const { return count; }
};

struct OptimizerStep {
  double rate = 0;
  std::int64_t step = 1;            ///< counts from 1
  double gradient_scale = 1;        ///< gradients are multiplied by it as they are read
  std::optional<double> norm = {};  ///< of the scaled gradients: those of weights with a smaller max_norm are clipped
  ElementRange range = {};          ///< what is updated
  /// lamb with a range: adds up what the processes that update the other ranges have found.
  std::function<void(std::span<double>)> add_up = {};
};

/// Settings that differ, and which of them each weight has; one number means all weights.
struct SettingsByWeight {
  std::span<const WeightSettings> kinds;
  std::span<const std::size_t> kind_of;

  std::size_t kind(std::size_t weight) const { return kind_of.size() == 1 ? kind_of[0] : kind_of[weight]; }
};

/// Weights of 16 bits are computed in float32 (not with lamb).
void run_optimizer(Algorithm algorithm, const OptimizerStep& step, const SettingsByWeight& settings,
                   std::span<const WeightMemory> weights);

/// Sum of the squares of a range of all elements, times scale squared, in double. Not finite when an element is not.
double sum_of_squares(std::span<const Tensor> tensors, double scale = 1, ElementRange range = {});

}  // namespace backpass
