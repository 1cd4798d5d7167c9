// Which values of the forward pass to keep for the backward pass, so that memory suffices and as little as possible is
// computed twice.
//
// Two searches, and the cheaper result is taken. One begins with everything kept and gives up, at the place where most
// memory is needed, what frees most bytes per operation. The other begins with what stands between blocks, where few
// values connect what was with what comes, and takes up again what saves most operations per byte.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include "plan/rehearsal.hpp"

namespace backpass {

struct Recomputation {
  Kept kept;
  std::size_t peak = 0;  ///< as measured
  double cost = 0;       ///< of all steps
};

/// The exact peak if so much is kept.
using MeasurePeak = std::function<std::size_t(const Kept&)>;

/// Everything that backward steps read, but for what is unwanted.
Kept keep_all(const Outline& outline);

struct RecomputeResult {
  std::optional<Recomputation> found;
  std::size_t least_peak = 0;  ///< of all that was tried, if nothing was found
};

RecomputeResult choose_recomputation(const Outline& outline, std::size_t budget, const MeasurePeak& measure);

}  // namespace backpass
