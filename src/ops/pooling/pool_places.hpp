// What the loops over single windows of max_pool_places and those over many at once know of each other.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/pool_windows.hpp"

namespace backpass {

/// Windows [begin, end) of a row, none of which reaches over the border sideways.
struct WholeColumns {
  std::int64_t begin = 0, end = 0;
};

/// The windows of one plane, one by one.
template <class T>
struct PlaneWindows {
  const PoolWindows& windows;
  const T* x;
  T* y;
  std::uint8_t* places;

  static bool wins(T candidate, T best) { return candidate > best || (std::isnan(candidate) && !std::isnan(best)); }

  /// Windows [begin, end) of row i.
  void pool(std::int64_t i, std::int64_t begin, std::int64_t end) const {
    const PoolGeometry& g = windows.geometry;
    const PoolSpan& rows = windows.at(0, i);
    for (std::int64_t j = begin; j < end; ++j) {
      const PoolSpan& columns = windows.at(1, j);
      const bool is_empty = rows.count == 0 || columns.count == 0;
      const T* first = x + rows.first * g.in[1] + columns.first;
      T best = is_empty ? -std::numeric_limits<T>::infinity() : *first;
      std::int64_t place = 0;
      for (std::int64_t r = 0; r < rows.count; ++r) {
        for (std::int64_t c = 0; c < columns.count; ++c) {
          const T value = first[r * g.dilation[0] * g.in[1] + c * g.dilation[1]];
          const bool take = wins(value, best);  // by selection, since branches on data mispredict
          best = take ? value : best;
          place = take ? r * g.kernel[1] + c : place;
        }
      }
      y[i * g.out[1] + j] = best;
      places[i * g.out[1] + j] = static_cast<std::uint8_t>(place);
    }
  }
};

/// max_pool_places of planes [begin, end) for windows one or two apart sideways.
void pool_places_of_planes(const PoolWindows& windows, const WholeColumns& whole, const float* x, float* y,
                           std::uint8_t* places, std::int64_t begin, std::int64_t end);

/// max_pool_places_backward of planes [begin, end) for windows of 2 x 2, side by side, none over the border: each
/// element of dx is written once.
void spread_pairs(const PoolGeometry& g, const float* dy, const std::uint8_t* places, float* dx, std::int64_t begin,
                  std::int64_t end);

}  // namespace backpass
