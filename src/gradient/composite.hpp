// Operators that run by a kernel of their own, differentiated through the simpler ones they stand for.
#pragma once

#include <vector>

#include "gradient/rule.hpp"

namespace backpass {

/// `write` emits an equivalent of the node in standard operators, as OpDef::expand does, and returns one value per
/// output that something flows back to (null for others); the gradient is that of what it emitted.
void composite_gradient(GradientContext& g, std::vector<Value*> (*write)(Builder&, const Node&));

}  // namespace backpass
