// Counts calls of operator new in this executable and the engine it loads.
#pragma once

#include <cstdint>

namespace backpass {

/// Since the process began; defined beside the replaced operator in steady_state_test.cpp.
std::int64_t allocation_count();

}  // namespace backpass
