// What becomes of a value of the forward pass that the backward pass reads.
#pragma once

#include <vector>

namespace backpass {

/// In the order in which memory is given up for operations.
enum class Fate : char {
  kept,             ///< from the forward pass
  made_again,       ///< once, for all that read it from then on
  made_each_time,   ///< in each epoch (plan/boundaries.hpp) that reads it
  made_for_reader,  ///< for each step that reads it
};

/// Per value of an outline; of those that are not choosable it says nothing.
using Fates = std::vector<Fate>;

/// Where in the backward pass something was made again.
struct Moment {
  int epoch = -1, reader = -1;

  /// Whether a copy of such a fate that was made here, if any, serves a reader at `now`.
  bool serves(const Moment& now, Fate fate) const {
    if (reader < 0) return false;
    if (fate == Fate::made_for_reader) return reader == now.reader;
    return fate == Fate::made_again || epoch == now.epoch;
  }
};

}  // namespace backpass
