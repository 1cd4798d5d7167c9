// How much memory a graph takes where it takes most, before extents are known.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "passes/nominal_sizes.hpp"

namespace backpass {

struct PeakEstimate {
  std::int64_t bytes = 0;
  std::unordered_set<const Value*> there;  ///< at that place; none of them a view
};

/// Lifetimes in the order of nodes, with views and results in place of operands as a binding has them; without scratch
/// memory and the gaps between places.
PeakEstimate estimate_peak(const Graph& graph, const NominalSizes& sizes);

}  // namespace backpass
