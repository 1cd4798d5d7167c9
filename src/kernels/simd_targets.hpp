// Instruction sets our own SIMD files are compiled for: the portable floor, SSE4, AVX2, AVX-512; NEON on Arm.
// Included before hwy/foreach_target.h. Fewer targets keep builds short and the library small.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
