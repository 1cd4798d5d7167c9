// Clipping by the norm of all gradients together.
#pragma once

#include <span>

#include "backpass/tensor.hpp"

namespace backpass {

/// What all gradients, each `scale` times what it says, are to be multiplied by so that their common Euclidean norm is
/// at most max_norm; at most 1.
double clip_factor(std::span<const Tensor> gradients, double max_norm, double scale = 1);
/// The same for a norm that is known.
double clip_factor(double norm, double max_norm);

/// Multiplies all of them.
void scale_in_place(std::span<const Tensor> gradients, double factor);

}  // namespace backpass
