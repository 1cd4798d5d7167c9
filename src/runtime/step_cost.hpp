// What the steps of a Binding have to do at least, for profiles.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/binding.hpp"

namespace backpass {

struct StepCost {
  std::string shapes;      ///< "float32[2,3], float32[3] -> float32[2,3]"
  std::int64_t flops = 0;  ///< as OpDef::flops counts; 0 where it does not, or extents are not known
  std::int64_t bytes = 0;  ///< of each operand once; of a selection no more than it selects
};

/// One for each of Binding::steps.
std::vector<StepCost> step_costs(const Binding& binding);

}  // namespace backpass
