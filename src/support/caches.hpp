// What the system tells of the processor's caches.
#pragma once

#include <cstdint>

namespace backpass {

/// Cache lines that a set of the first-level data cache holds. 8 where the system does not tell.
std::int64_t first_level_ways();

}  // namespace backpass
