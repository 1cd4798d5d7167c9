// Gradient rules of Loop and Scan.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

class GradientContext;

/// A value handed from one iteration to the next.
struct CarriedState {
  std::size_t input;   ///< of the node: the value before the first iteration
  std::size_t output;  ///< of the node: the value after the last one
  Value* before;       ///< input of the body
  Value* after;        ///< output of the body
};

/// A tensor that the iterations read or write slice by slice.
struct SlicedTensor {
  std::size_t position;  ///< among the inputs or outputs of the node
  Value* slice;          ///< input or output of the body
  std::int64_t axis = 0;
  std::int64_t reversed = 0;
};

/// What Loop and Scan have in common.
struct Iteration {
  std::vector<CarriedState> states;
  std::vector<SlicedTensor> reads;
  std::vector<SlicedTensor> writes;
  Value* number = nullptr;     ///< input of the body that counts iterations, if it has one
  Value* condition = nullptr;  ///< input of the body that is true in every iteration, if it has one
};

/// Differentiates a node whose body runs this way: the forward node also gives what its iterations began with, and a
/// Scan goes through them backwards.
void iteration_gradient(GradientContext& g, const Iteration& iteration, bool standard_only);

}  // namespace backpass
