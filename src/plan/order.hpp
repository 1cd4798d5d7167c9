// The order of steps, where memory depends on it.
#pragma once

#include "plan/program.hpp"
#include "plan/repeat.hpp"

namespace backpass {

/// The nodes of the program in an order in which those outside of `forward` that nothing but an output depends on, such
/// as gradients of weights, come as soon as what they read is there: they free more than they take. None comes before
/// a node of `forward` that it stands behind.
std::vector<const Node*> with_gradients_early(const Program& program, const NodeSet& forward);

}  // namespace backpass
