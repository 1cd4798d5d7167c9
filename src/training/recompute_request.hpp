// SessionOptions::recompute.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan/program.hpp"
#include "plan/rehearsal.hpp"

namespace backpass {

struct RecomputeRequest {
  bool is_cheap = false;
  bool is_blocks = false;
  struct Operators {
    std::vector<std::string> names;
    int count = -1;
  };
  std::vector<Operators> operators;
};

/// InvalidInput for what cannot be read.
RecomputeRequest read_recompute(std::span<const std::string> texts);

/// Marks the values that are not to be kept; the others that the backward pass may find are.
Fates mark_unwanted(const RecomputeRequest& request, const Program& program, Outline& outline);

}  // namespace backpass
