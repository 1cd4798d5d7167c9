// Which instruction sets SIMD files are compiled for. Include this before any Highway header.
//
// x86-64: SSE4 (the floor: every CPU with x86-64-v2), AVX2 and AVX-512; the best one is chosen at run time. Elsewhere
// Highway's own choice stands.
#pragma once

#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_SSE4
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#endif
