#include "support/caches.hpp"

#include <unistd.h>

namespace backpass {

std::int64_t first_level_ways() {
  static const std::int64_t ways = [] {
    const long told = sysconf(_SC_LEVEL1_DCACHE_ASSOC);
    return told > 0 ? std::int64_t{told} : 8;
  }();
  return ways;
}

}  // namespace backpass
