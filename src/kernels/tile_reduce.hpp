// Loops between the rows of a tile and one element per row, and filling memory with one element.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/independent.hpp"
#include "kernels/tile.hpp"

namespace backpass {

extern const TileReduction kTileSum;
extern const TileReduction kTileMean;
extern const TileReduction kTileMax;  ///< NaN where a row has one
extern const TileReduction kTileMin;

/// Null when there is none of this name.
const TileReduction* find_tile_reduction(std::string_view name);

/// Repeats each element along its row; kTileSpread in programs.
inline constexpr std::string_view kTileSpread = "Spread";
TileRowLoop tile_spread_loop(DType type);

/// f.operator()<T>() with an unsigned integer of that many bytes.
template <class F>
void visit_element_size(std::int64_t bytes, const F& f) {
  switch (bytes) {
    case 1:
      return f.template operator()<std::uint8_t>();
    case 2:
      return f.template operator()<std::uint16_t>();
    case 4:
      return f.template operator()<std::uint32_t>();
    default:
      return f.template operator()<std::uint64_t>();
  }
}

/// std::fill_n in blocks of a constant length, which the compiler turns into vector stores.
template <class T>
T* fill_run(T* to, std::int64_t n, T value) {
  constexpr std::int64_t kBlock = 64 / sizeof(T);
  for (; n >= kBlock; n -= kBlock, to += kBlock) {
    BACKPASS_INDEPENDENT
    for (std::int64_t i = 0; i < kBlock; ++i) to[i] = value;
  }
  return std::fill_n(to, n, value);
}

}  // namespace backpass
