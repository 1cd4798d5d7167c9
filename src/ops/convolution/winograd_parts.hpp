// How Winograd's convolutions lay out tiles, and the loops they share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backpass/tensor.hpp"
#include "ops/convolution/winograd_simd.hpp"
#include "support/parallel.hpp"

namespace backpass::winograd {

/// Bytes of transformed tiles that are worked on together: about what a second-level cache holds.
inline constexpr std::int64_t kBlockBytes = 1536 * 1024;

inline std::int64_t rounded(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

/// Rows of channels that do not lie a power of two apart, where they would push each other out of the cache.
inline std::int64_t row_of(std::int64_t channels) { return rounded(channels, panel_width()) + lanes(); }

/// Images of `out` x `out` results per tile, which reach `pad` beyond their border.
inline Images images_of(std::int64_t channels, const Dims& extents, const Dims& results, const Dims& pad,
                        std::int64_t out) {
  return {.channels = channels,
          .height = extents[0],
          .width = extents[1],
          .tile_rows = (results[0] + out - 1) / out,
          .tile_columns = (results[1] + out - 1) / out,
          .out = out,
          .pad_top = pad[0],
          .pad_left = pad[1]};
}

/// Rows of tiles in a block of `bytes`, for `row_bytes` each: blocks of nearly equal size.
inline std::int64_t rows_of_block(std::int64_t rows, std::int64_t row_bytes, std::int64_t bytes) {
  const std::int64_t most = std::max<std::int64_t>(1, bytes / row_bytes);
  const std::int64_t blocks = (rows + most - 1) / most;
  return (rows + blocks - 1) / blocks;
}

template <class F>
void for_each(std::int64_t count, const F& f) {
  parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) f(i);
  });
}

/// Calls f(channel) for every vector of channels, in parallel.
template <class F>
void for_channels(std::int64_t channels, const F& f) {
  for_each((channels + lanes() - 1) / lanes(), [&](std::int64_t i) { f(i * lanes()); });
}

}  // namespace backpass::winograd
