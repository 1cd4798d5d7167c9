// Messages between two processes that both want to say something.
#pragma once

#include "backpass/parallel.hpp"

namespace backpass::collectives {

/// Sends to and receives from the same process. The lower rank speaks first, so that nobody waits for somebody who
/// waits.
inline void exchange(Communicator& world, int other, const Tensor& mine, const Tensor& theirs, int tag) {
  if (world.rank() < other) world.send(mine, other, tag);
  world.receive(theirs, other, tag);
  if (world.rank() > other) world.send(mine, other, tag);
}

/// Calls f(other) for every process, this one included, in an order in which all pairs meet: in round t, those whose
/// ranks add up to t.
template <class F>
void for_each_partner(const Communicator& world, F&& f) {
  const int size = world.size();
  for (int round = 0; round < size; ++round) f((round - world.rank() + size) % size);
}

}  // namespace backpass::collectives
