// Random numbers of many neighbouring elements at a time, and what Dropout does with them. The numbers are those of
// Philox::bits, whatever the instruction set.
#pragma once

#include <cstdint>

#include "support/philox.hpp"

namespace backpass {

/// bits[i] = random.bits(first + i) for i in [0, n). `first` is a multiple of four.
void philox_bits(const Philox& random, std::int64_t first, std::int64_t n, std::uint32_t* bits);

/// y[i] = random.bits(first + i) >= threshold ? x[i] * scale : 0 for i in [0, n). `first` is a multiple of four; y may
/// be x.
void keep_scaled(const Philox& random, std::int64_t first, std::int64_t n, std::uint32_t threshold, float scale,
                 const float* x, float* y);

/// kept[i] = random.bits(first + i) >= threshold for i in [0, n), whatever `first` is. `room` has n + 3 elements, in
/// which the result lies.
const bool* draw_kept(const Philox& random, std::int64_t first, std::int64_t n, std::uint32_t threshold, bool* room);

/// y[i] = kept[i] ? x[i] * scale : 0 for i in [0, n); y may be x.
void keep_where(const bool* kept, std::int64_t n, float scale, const float* x, float* y);
void keep_where(const bool* kept, std::int64_t n, double scale, const double* x, double* y);

}  // namespace backpass
