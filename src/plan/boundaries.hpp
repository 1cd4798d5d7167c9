// Where a forward pass is narrow: between its blocks.
#pragma once

#include <vector>

#include "plan/rehearsal.hpp"

namespace backpass {

/// For each position of the forward pass where fewer bytes go from before to behind it than around it: the choosable
/// values that do.
std::vector<std::vector<int>> find_boundaries(const Outline& outline);

}  // namespace backpass
