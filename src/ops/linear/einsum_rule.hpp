// The derivative of Einsum.
#pragma once

#include "gradient/rule.hpp"
#include "ops/linear/einsum_kernel.hpp"

namespace backpass {

/// Labels of an equation: letters are their own character codes, the axes of an ellipsis count from here, from the
/// right.
inline constexpr int kFirstEllipsisLabel = 256;

/// With respect to one operand: the Einsum of dY and all other operands, along the labels of this one.
void einsum_gradient(GradientContext& g, const EinsumLabels& labels);

}  // namespace backpass
