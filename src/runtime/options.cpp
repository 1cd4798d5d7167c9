#include "runtime/options.hpp"

#include <cmath>
#include <limits>

namespace backpass {
namespace {

void check_range(const char* name, int value, int least, int most) {
  if (value < least || value > most) fail(name, ": got ", value, ", expected ", least, " to ", most);
}

}  // namespace

const SessionOptions& checked(const SessionOptions& options) {
  constexpr int kMostThreads = 1024;  // OpenMP ends the process when the system refuses it one
  check_range("num_threads", options.num_threads, 0, kMostThreads);
  check_range("binding_cache", options.binding_cache, 1, std::numeric_limits<int>::max());
  if (!(options.max_memory >= 0) || std::isinf(options.max_memory)) {
    fail("max_memory: got ", options.max_memory,
         ", expected a number of bytes, a share from 0 to 1, or 0 for no limit");
  }
  if (!(options.sparse_threshold >= 0 && options.sparse_threshold <= 1)) {
    fail("sparse_threshold: got ", options.sparse_threshold, ", expected a share from 0 to 1");
  }
  return options;
}

}  // namespace backpass
