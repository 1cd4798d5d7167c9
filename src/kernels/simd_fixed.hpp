// simd.hpp for files that keep vectors in arrays: instruction sets whose vectors have no size known to the compiler are
// left out. Include this before any Highway header.
#pragma once

#include "support/simd.hpp"

#if !defined(__x86_64__)
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
