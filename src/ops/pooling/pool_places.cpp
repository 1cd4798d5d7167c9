#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/pooling/pool.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

template <class T>
bool wins(T candidate, T best) {
  return candidate > best || (std::isnan(candidate) && !std::isnan(best));
}

/// How far each place of a window is from its first.
std::vector<std::int64_t> distances(const PoolGeometry& g) {
  std::vector<std::int64_t> found;
  for (std::int64_t r = 0; r < g.kernel[0]; ++r) {
    for (std::int64_t c = 0; c < g.kernel[1]; ++c) found.push_back(r * g.dilation[0] * g.in[1] + c * g.dilation[1]);
  }
  return found;
}

/// Calls f(plane, number of the window, its first element within the plane, rows, columns); planes in parallel.
template <class F>
void for_each_image_window(const PoolWindows& w, const F& f) {
  const PoolGeometry& g = w.geometry;
  const std::int64_t size = g.out[0] * g.out[1];
  parallel_for(g.planes, grain_for(size * element_count(g.kernel)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t plane = begin; plane < end; ++plane) {
      std::int64_t o = plane * size;
      for (std::int64_t i = 0; i < g.out[0]; ++i) {
        const PoolSpan& rows = w.at(0, i);
        for (std::int64_t j = 0; j < g.out[1]; ++j, ++o) {
          const PoolSpan& columns = w.at(1, j);
          f(plane, o, rows.first * g.in[1] + columns.first, rows.count, columns.count);
        }
      }
    }
  });
}

}  // namespace

template <class T>
void max_pool_places(const PoolWindows& windows, const T* x, T* y, std::uint8_t* places) {
  const PoolGeometry& g = windows.geometry;
  const std::int64_t in_size = g.in[0] * g.in[1];
  const std::vector<std::int64_t> distance = distances(g);
  for_each_image_window(
      windows, [&](std::int64_t plane, std::int64_t o, std::int64_t first, std::int64_t rows, std::int64_t columns) {
        T best = -std::numeric_limits<T>::infinity();
        std::int64_t place = 0;
        if (rows > 0 && columns > 0) best = x[plane * in_size + first];
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t c = 0; c < columns; ++c) {
            const std::int64_t candidate = r * g.kernel[1] + c;
            const T value = x[plane * in_size + first + distance[static_cast<std::size_t>(candidate)]];
            const bool take = wins(value, best);  // by selection, since branches on data mispredict
            best = take ? value : best;
            place = take ? candidate : place;
          }
        }
        y[o] = best;
        places[o] = static_cast<std::uint8_t>(place);
      });
}

template <class T>
void max_pool_places_backward(const PoolWindows& windows, const T* dy, const std::uint8_t* places, T* dx) {
  const PoolGeometry& g = windows.geometry;
  const std::int64_t in_size = g.in[0] * g.in[1];
  const std::vector<std::int64_t> distance = distances(g);
  std::fill_n(dx, g.planes * in_size, T{0});
  for_each_image_window(
      windows, [&](std::int64_t plane, std::int64_t o, std::int64_t first, std::int64_t rows, std::int64_t columns) {
        const bool is_empty = rows == 0 || columns == 0;
        dx[plane * in_size + (is_empty ? 0 : first + distance[places[o]])] += dy[o];
      });
}

template void max_pool_places(const PoolWindows&, const float*, float*, std::uint8_t*);
template void max_pool_places(const PoolWindows&, const double*, double*, std::uint8_t*);
template void max_pool_places_backward(const PoolWindows&, const float*, const std::uint8_t*, float*);
template void max_pool_places_backward(const PoolWindows&, const double*, const std::uint8_t*, double*);

}  // namespace backpass
