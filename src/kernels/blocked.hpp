// Loops over images in blocked layout: [N, C/b, H, W, b] instead of [N, C, H, W], b a multiple of 8. Where channels do
// not fill the last block, the rest of it holds anything.
#pragma once

#include <cstdint>

#include "kernels/pool_windows.hpp"

namespace backpass {

/// [images, channels, size] -> [images, channels/b, size, b]; the rest of the last block becomes zero.
void to_blocked(std::int64_t images, std::int64_t channels, std::int64_t b, std::int64_t size, const float* x,
                float* y);
/// The other way round.
void from_blocked(std::int64_t images, std::int64_t channels, std::int64_t b, std::int64_t size, const float* x,
                  float* y);

/// Pooling over two axes; geometry.planes counts blocks of channels.
void blocked_max_pool(const PoolWindows& windows, std::int64_t b, const float* x, float* y);
void blocked_average_pool(const PoolWindows& windows, std::int64_t b, const float* x, float* y, bool count_padding);
/// Mean over `rows` x `cols` positions: one number per channel, [images, channels].
void blocked_global_average(std::int64_t images, std::int64_t channels, std::int64_t b, std::int64_t rows,
                            std::int64_t cols, const float* x, float* y);

}  // namespace backpass
