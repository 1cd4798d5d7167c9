// The environment variable BACKPASS_MAX_ISA (sse4, avx2 or avx512) caps the instructions that our own loops and oneDNN
// use, so that tests can take the road of a lesser machine. Read when the library is loaded: before anything has chosen
// its loops.
#if defined(__x86_64__)
#include <dnnl.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "support/simd.hpp"
// After simd.hpp.
#include "hwy/targets.h"

namespace backpass {
namespace {

/// Highway numbers targets from the best to the least.
void cap(dnnl_cpu_isa_t library, std::int64_t own) {
  dnnl_set_max_cpu_isa(library);
  hwy::DisableTargets(own - 1);
}

const bool kRead = [] {
  const char* value = std::getenv("BACKPASS_MAX_ISA");
  if (value == nullptr) return false;
  std::string_view name = value;
  if (name == "sse4") {
    cap(dnnl_cpu_isa_sse41, HWY_SSE4);
  } else if (name == "avx2") {
    cap(dnnl_cpu_isa_avx2, HWY_AVX2);
  } else if (name == "avx512") {
    cap(dnnl_cpu_isa_avx512_core, HWY_AVX3);
  } else {
    std::fprintf(stderr, "BACKPASS_MAX_ISA: got '%s', expected sse4, avx2 or avx512; it is ignored\n", value);
  }
  return true;
}();

}  // namespace
}  // namespace backpass
#endif
