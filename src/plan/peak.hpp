// How much of a program's memory is needed at once, as an expression of its symbols.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/dim.hpp"
#include "plan/program.hpp"

namespace backpass {

/// Bytes of values in the arena: the largest of some sums. What kernels want as scratch memory, and gaps between
/// values, are only known with numbers and come on top.
struct Peak {
  std::vector<Dim> sums;             ///< none of which is surely the largest
  std::vector<std::string> unknown;  ///< values whose size the model does not say

  std::string str() const;  ///< "max(3136*batch+64, 4096*batch)"
};

Peak find_peak(const Program& program);

}  // namespace backpass
