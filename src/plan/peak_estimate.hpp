// How much memory a graph takes where it takes most, before extents are known.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "plan/nominal_sizes.hpp"

namespace backpass {

struct PeakEstimate {
  std::int64_t bytes = 0;
  std::unordered_set<const Value*> there;  ///< at that place
};

/// The graph as a program has it, without scratch memory and the gaps between places.
PeakEstimate estimate_peak(const Graph& graph, const NominalSizes& sizes);

}  // namespace backpass
