// What the second half of a module's program finds where the first half, and its caller, have it.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/program.hpp"
#include "plan/repeat.hpp"

namespace backpass {

struct ReadLater {
  std::vector<std::size_t> inputs;     ///< of the module, whose memory the second half may read
  std::vector<std::size_t> outputs;    ///< the same
  std::vector<std::size_t> kept;       ///< outputs whose memory a function of PyTorch may have kept for its gradient
  std::vector<std::size_t> gradients;  ///< after the module's outputs, whose memory foreign code may have kept
};

/// Nodes in `repeated` belong to the first half, and may run again in the second.
ReadLater find_read_later(const Program& program, std::size_t user_outputs, const NodeSet& repeated = {});

}  // namespace backpass
