// The learning rate that grows linearly, then falls linearly.
#pragma once

#include <algorithm>
#include <cstdint>

namespace backpass {

struct LinearSchedule {
  std::int64_t warmup = 0;
  std::int64_t total = 0;
  float initial_rate = 0;

  float rate(std::int64_t step) const {
    const auto above = static_cast<double>(step < warmup ? step : std::max<std::int64_t>(0, total - step));
    const auto below = static_cast<double>(std::max<std::int64_t>(1, step < warmup ? warmup : total - warmup));
    return static_cast<float>(static_cast<double>(initial_rate) * above / below);
  }
};

}  // namespace backpass
