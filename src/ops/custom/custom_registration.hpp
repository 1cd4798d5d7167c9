// The functions that stand in the definition of an operator of a user; each finds what was registered by its node.
#pragma once

#include "graph/op.hpp"

namespace backpass {

void infer_custom(InferContext& c);
void compute_custom(ComputeContext& c);
Kernel prepare_custom(PrepareContext& c);
void infer_custom_grad(InferContext& c);
void compute_custom_grad(ComputeContext& c);
void differentiate_custom(GradientContext& g);

}  // namespace backpass
