#include "ops/pooling/pool_places.hpp"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "ops/pooling/pool.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

/// Calls f(begin, end) over runs of planes, in parallel.
template <class F>
void for_planes(const PoolGeometry& g, const F& f) {
  parallel_for(g.planes, grain_for(element_count(g.out) * element_count(g.kernel)), f);
}

WholeColumns whole_columns(const PoolWindows& w) {
  const PoolGeometry& g = w.geometry;
  const auto is_whole = [&](std::int64_t j) { return w.at(1, j).count == g.kernel[1]; };
  WholeColumns found;
  while (found.begin < g.out[1] && !is_whole(found.begin)) ++found.begin;
  found.end = found.begin;
  while (found.end < g.out[1] && is_whole(found.end)) ++found.end;
  return found;
}

/// 2 x 2 windows side by side that tile the plane from its first element on.
bool are_pairs(const PoolGeometry& g) {
  const auto both = [](const Dims& dims, std::int64_t value) { return dims[0] == value && dims[1] == value; };
  return both(g.kernel, 2) && both(g.stride, 2) && both(g.dilation, 1) && both(g.pad_begin, 0) &&
         2 * g.out[0] <= g.in[0] && 2 * g.out[1] <= g.in[1];
}

/// How far each place of a window is from its first.
std::vector<std::int64_t> distances(const PoolGeometry& g) {
  std::vector<std::int64_t> found;
  for (std::int64_t r = 0; r < g.kernel[0]; ++r) {
    for (std::int64_t c = 0; c < g.kernel[1]; ++c) found.push_back(r * g.dilation[0] * g.in[1] + c * g.dilation[1]);
  }
  return found;
}

/// Adds the shares of one plane's windows to where they came from.
template <class T>
void add_shares(const PoolWindows& w, const std::vector<std::int64_t>& distance, const T* dy,
                const std::uint8_t* places, T* dx) {
  const PoolGeometry& g = w.geometry;
  for (std::int64_t i = 0; i < g.out[0]; ++i) {
    const PoolSpan& rows = w.at(0, i);
    for (std::int64_t j = 0; j < g.out[1]; ++j) {
      const PoolSpan& columns = w.at(1, j);
      const std::int64_t o = i * g.out[1] + j;
      const bool is_empty = rows.count == 0 || columns.count == 0;
      dx[is_empty ? 0 : rows.first * g.in[1] + columns.first + distance[places[o]]] += dy[o];
    }
  }
}

}  // namespace

template <class T>
void max_pool_places(const PoolWindows& windows, const T* x, T* y, std::uint8_t* places) {
  const PoolGeometry& g = windows.geometry;
  const std::int64_t in_size = g.in[0] * g.in[1], out_size = g.out[0] * g.out[1];
  const WholeColumns whole = whole_columns(windows);
  for_planes(g, [&](std::int64_t begin, std::int64_t end) {
    if constexpr (std::is_same_v<T, float>) {
      if (g.stride[1] <= 2) return pool_places_of_planes(windows, whole, x, y, places, begin, end);
    }
    for (std::int64_t plane = begin; plane < end; ++plane) {
      const PlaneWindows<T> one{windows, x + plane * in_size, y + plane * out_size, places + plane * out_size};
      for (std::int64_t i = 0; i < g.out[0]; ++i) one.pool(i, 0, g.out[1]);
    }
  });
}

template <class T>
void max_pool_places_backward(const PoolWindows& windows, const T* dy, const std::uint8_t* places, T* dx) {
  const PoolGeometry& g = windows.geometry;
  const std::int64_t in_size = g.in[0] * g.in[1], out_size = g.out[0] * g.out[1];
  const bool pairs = are_pairs(g);
  const std::vector<std::int64_t> distance = distances(g);
  for_planes(g, [&](std::int64_t begin, std::int64_t end) {
    if constexpr (std::is_same_v<T, float>) {
      if (pairs) return spread_pairs(g, dy, places, dx, begin, end);
    }
    for (std::int64_t plane = begin; plane < end; ++plane) {
      std::fill_n(dx + plane * in_size, in_size, T{0});
      add_shares(windows, distance, dy + plane * out_size, places + plane * out_size, dx + plane * in_size);
    }
  });
}

template void max_pool_places(const PoolWindows&, const float*, float*, std::uint8_t*);
template void max_pool_places(const PoolWindows&, const double*, double*, std::uint8_t*);
template void max_pool_places_backward(const PoolWindows&, const float*, const std::uint8_t*, float*);
template void max_pool_places_backward(const PoolWindows&, const double*, const std::uint8_t*, double*);

}  // namespace backpass
