// Training models as ONNX Runtime's gradient builder writes them, known by its names: nodes of the derivative of
// `conv1` are `conv1_Grad/...`, gradients of `x` are `x_grad`, or `x_grad_0`, `x_grad_1` ... that
// `AccumulateGrad_x_grad` adds up.
#pragma once

#include <string>

#include "onnx_io/proto.hpp"

namespace backpass {

/// What in such a model is not the derivative of its first output, with the node that shows it.
struct Stranger {
  std::string node;  ///< "[Mul 'scale']"; empty: about no node
  std::string what;  ///< empty: there is none
};

/// Every node that reads a gradient has to carry a name of the builder's and to read and write no more than values and
/// gradients around the node it is derived from; the seed has to be 1, and what accumulators take has to be gradients.
Stranger find_stranger(const onnx_io::GraphProto& graph);

}  // namespace backpass
