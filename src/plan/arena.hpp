// Lifetimes -> offsets. One block of memory serves all intermediate values of a run.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace backpass {

/// A buffer that must exist from step `first` to step `last`, both included.
struct Lifetime {
  std::size_t bytes = 0;
  int first = 0;
  int last = 0;
};

/// What lies in the arena already, when the rest of a run is planned.
struct Occupied {
  struct Buffer {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    int last = 0;  ///< it is needed from before the first step that is planned to this one, included
  };
  std::vector<Buffer> buffers;
  /// Ends of the blocks of memory that the arena consists of so far, multiples of 64: no buffer lies across one.
  std::vector<std::size_t> walls;
};

struct ArenaPlan {
  std::vector<std::size_t> offsets;  ///< one per lifetime, multiples of 64
  std::size_t peak = 0;              ///< bytes the arena must have
  std::size_t lower_bound = 0;       ///< largest sum of simultaneously live buffers: no plan can do with less
};

/// Buffers in order of their start, each at the lowest offset where it meets no buffer alive at the same time: quick,
/// because only what is alive is looked at. While the best misses the lower bound by more than 5 %, other orders are
/// tried: by size, by lifetime, and those first that are alive when most is.
ArenaPlan plan_arena(std::span<const Lifetime> lifetimes, const Occupied& occupied = {});

}  // namespace backpass
