// Clipping by the norm of all gradients together.
#pragma once

#include <span>

#include "backpass/tensor.hpp"

namespace backpass {

/// What all gradients are to be multiplied by so that their common Euclidean norm is at most max_norm; at most 1.
double clip_factor(std::span<const Tensor> gradients, double max_norm);

}  // namespace backpass
