// Where a forward pass is narrow: between its blocks.
#pragma once

#include <vector>

#include "plan/rehearsal.hpp"

namespace backpass {

struct Boundary {
  int step = 0;             ///< the last before it
  std::vector<int> values;  ///< choosable ones that go from before to behind it
};

/// Each position of the forward pass where fewer bytes go from before to behind it than around it.
std::vector<Boundary> find_boundaries(const Outline& outline);

/// Per step that is not of the forward pass: how many boundaries lie before what it or one that follows it reads of the
/// forward pass. So an epoch is that part of the backward pass that belongs to one block; they come in falling order.
std::vector<int> find_epochs(const Outline& outline);

}  // namespace backpass
