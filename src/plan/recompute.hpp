// Which values of the forward pass to keep for the backward pass, so that memory suffices and as little as possible is
// computed twice.
//
// Several searches, and the cheapest result is taken. One begins with everything kept, others with what stands between
// blocks, where few values connect what was with what comes. At the place where most memory is needed each gives up
// what frees most bytes per operation, first from the forward pass, then what was made again for later; then it takes
// up again what saves most operations per byte.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include "plan/rehearsal.hpp"

namespace backpass {

struct Recomputation {
  Fates fates;
  std::size_t peak = 0;  ///< as measured
  double cost = 0;       ///< of all steps
};

/// The exact peak.
using MeasurePeak = std::function<std::size_t(const Fates&)>;

/// Everything that backward steps read is kept, but for what is unwanted.
Fates keep_all(const Outline& outline);

struct RecomputeResult {
  Recomputation chosen;  ///< the cheapest that fits; if none does, the one with the smallest peak
  bool fits = false;
};

RecomputeResult choose_recomputation(const Outline& outline, std::size_t budget, const MeasurePeak& measure);

}  // namespace backpass
