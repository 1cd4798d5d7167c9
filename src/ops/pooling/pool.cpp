#include "ops/pooling/pool.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>

#include "support/parallel.hpp"

namespace backpass {
namespace {

/// The spans of one window, one per axis.
using Box = std::array<const PoolSpan*, kMaxSpatialAxes>;

/// Calls f(offset of the first element, step, count) for each line (stretch along the last axis) of a window.
template <class F>
void for_each_line(const PoolWindows& w, const Box& box, const F& f) {
  const PoolGeometry& g = w.geometry;
  std::size_t last = g.in.size() - 1;
  for (std::size_t axis = 0; axis <= last; ++axis) {
    if (box[axis]->count == 0) return;
  }
  std::array<std::int64_t, kMaxSpatialAxes> at{};
  while (true) {
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < last; ++axis) {
      offset = offset * g.in[axis] + box[axis]->first + at[axis] * g.dilation[axis];
    }
    f(offset * g.in[last] + box[last]->first, g.dilation[last], box[last]->count);
    std::size_t axis = last;
    while (axis > 0 && ++at[axis - 1] == box[axis - 1]->count) at[--axis] = 0;
    if (axis == 0) return;
  }
}

/// Calls f(plane, output element within the plane, window) for all windows; planes in parallel.
template <class F>
void for_each_window(const PoolWindows& w, const F& f) {
  const PoolGeometry& g = w.geometry;
  std::int64_t size = element_count(g.out);
  if (size == 0) return;
  std::size_t rank = g.out.size();
  parallel_for(g.planes, grain_for(size * element_count(g.kernel)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t plane = begin; plane < end; ++plane) {
      std::array<std::int64_t, kMaxSpatialAxes> at{};
      Box box{};
      for (std::size_t axis = 0; axis < rank; ++axis) box[axis] = &w.at(axis, 0);
      for (std::int64_t o = 0; o < size; ++o) {
        f(plane, o, box);
        for (std::size_t axis = rank; axis-- > 0;) {
          if (++at[axis] == g.out[axis]) at[axis] = 0;
          box[axis] = &w.at(axis, at[axis]);
          if (at[axis] != 0) break;
        }
      }
    }
  });
}

std::int64_t column_major_index(const Dims& dims, std::int64_t index) {
  std::array<std::int64_t, kMaxSpatialAxes> at{};
  for (std::size_t axis = dims.size(); axis-- > 0;) {
    at[axis] = index % dims[axis];
    index /= dims[axis];
  }
  std::int64_t result = 0;
  for (std::size_t axis = dims.size(); axis-- > 0;) result = result * dims[axis] + at[axis];
  return result;
}

template <class T>
bool wins(T candidate, T best) {
  if constexpr (std::is_floating_point_v<T>) {
    return candidate > best || (std::isnan(candidate) && !std::isnan(best));
  } else {
    return candidate > best;
  }
}

template <class T>
constexpr T lowest() {
  return std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
}

/// Largest element of one window of an image and where it is; both by selection, since branches on data mispredict.
template <class T, class Rows, class Cols>
void largest_in(const T* x, std::int64_t width, const PoolGeometry& g, std::int64_t first, Rows rows, Cols cols,
                T& best, std::int64_t& where) {
  best = x[first];
  where = first;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t line = first + r * g.dilation[0] * width;
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::int64_t at = line + c * g.dilation[1];
      const bool take = wins(x[at], best);
      best = take ? x[at] : best;
      where = take ? at : where;
    }
  }
}

/// max_pool of two-dimensional images with row-major indices.
template <class T>
void max_pool_images(const PoolWindows& w, const T* x, T* y, std::int64_t* indices) {
  using Two = std::integral_constant<std::int64_t, 2>;  // the usual window, unrolled
  const PoolGeometry& g = w.geometry;
  const std::int64_t in_size = g.in[0] * g.in[1];
  const std::int64_t out_size = g.out[0] * g.out[1];
  parallel_for(g.planes, grain_for(out_size * element_count(g.kernel)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t plane = begin; plane < end; ++plane) {
      const T* from = x + plane * in_size;
      std::int64_t o = plane * out_size;
      for (std::int64_t i = 0; i < g.out[0]; ++i) {
        const PoolSpan& rows = w.at(0, i);
        for (std::int64_t j = 0; j < g.out[1]; ++j, ++o) {
          const PoolSpan& cols = w.at(1, j);
          T best = lowest<T>();
          std::int64_t where = 0;
          const std::int64_t first = rows.first * g.in[1] + cols.first;
          if (rows.count == 2 && cols.count == 2) {
            largest_in(from, g.in[1], g, first, Two(), Two(), best, where);
          } else if (rows.count > 0 && cols.count > 0) {
            largest_in(from, g.in[1], g, first, rows.count, cols.count, best, where);
          }
          y[o] = best;
          if (indices != nullptr) indices[o] = plane * in_size + where;
        }
      }
    }
  });
}

/// What a mean is divided by.
std::int64_t divisor(const PoolGeometry& g, const Box& box, bool count_padding) {
  std::int64_t count = 1;
  for (std::size_t axis = 0; axis < g.in.size(); ++axis) {
    count *= count_padding ? box[axis]->padded_count : box[axis]->count;
  }
  return std::max<std::int64_t>(1, count);
}

}  // namespace

template <class T>
void max_pool(const PoolWindows& windows, const T* x, T* y, std::int64_t* indices, bool column_major) {
  const PoolGeometry& g = windows.geometry;
  if (g.in.size() == 2 && !column_major) return max_pool_images(windows, x, y, indices);
  std::int64_t in_size = element_count(g.in);
  std::int64_t out_size = element_count(g.out);
  for_each_window(windows, [&](std::int64_t plane, std::int64_t o, const Box& box) {
    const T* from = x + plane * in_size;
    T best = lowest<T>();
    std::int64_t where = -1;
    for_each_line(windows, box, [&](std::int64_t offset, std::int64_t step, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i, offset += step) {
        if (where >= 0 && !wins(from[offset], best)) continue;
        best = from[offset];
        where = offset;
      }
    });
    y[plane * out_size + o] = best;
    if (indices == nullptr) return;
    where = std::max<std::int64_t>(where, 0);
    indices[plane * out_size + o] = plane * in_size + (column_major ? column_major_index(g.in, where) : where);
  });
}

template <class T>
void average_pool(const PoolWindows& windows, const T* x, T* y, bool count_padding) {
  const PoolGeometry& g = windows.geometry;
  std::int64_t in_size = element_count(g.in);
  std::int64_t out_size = element_count(g.out);
  for_each_window(windows, [&](std::int64_t plane, std::int64_t o, const Box& box) {
    const T* from = x + plane * in_size;
    double sum = 0;
    for_each_line(windows, box, [&](std::int64_t offset, std::int64_t step, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i, offset += step) sum += from[offset];
    });
    y[plane * out_size + o] = static_cast<T>(sum / static_cast<double>(divisor(g, box, count_padding)));
  });
}

template <class T>
void average_pool_backward(const PoolWindows& windows, const T* dy, T* dx, bool count_padding) {
  const PoolGeometry& g = windows.geometry;
  std::int64_t in_size = element_count(g.in);
  std::int64_t out_size = element_count(g.out);
  std::fill_n(dx, g.planes * in_size, T(0));
  for_each_window(windows, [&](std::int64_t plane, std::int64_t o, const Box& box) {
    T share = dy[plane * out_size + o] / static_cast<T>(divisor(g, box, count_padding));
    T* to = dx + plane * in_size;
    for_each_line(windows, box, [&](std::int64_t offset, std::int64_t step, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i, offset += step) to[offset] += share;
    });
  });
}

template <class T>
void lp_pool(const PoolWindows& windows, const T* x, T* y, double p) {
  const PoolGeometry& g = windows.geometry;
  std::int64_t in_size = element_count(g.in);
  std::int64_t out_size = element_count(g.out);
  for_each_window(windows, [&](std::int64_t plane, std::int64_t o, const Box& box) {
    const T* from = x + plane * in_size;
    double sum = 0;
    for_each_line(windows, box, [&](std::int64_t offset, std::int64_t step, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i, offset += step) {
        sum += std::pow(std::abs(static_cast<double>(from[offset])), p);
      }
    });
    y[plane * out_size + o] = static_cast<T>(std::pow(sum, 1.0 / p));
  });
}

#define BACKPASS_INSTANTIATE(T)                                                   \
  template void average_pool<T>(const PoolWindows&, const T*, T*, bool);          \
  template void average_pool_backward<T>(const PoolWindows&, const T*, T*, bool); \
  template void lp_pool<T>(const PoolWindows&, const T*, T*, double);
BACKPASS_INSTANTIATE(float)
BACKPASS_INSTANTIATE(double)
#undef BACKPASS_INSTANTIATE
template void max_pool<float>(const PoolWindows&, const float*, float*, std::int64_t*, bool);
template void max_pool<double>(const PoolWindows&, const double*, double*, std::int64_t*, bool);
template void max_pool<std::int8_t>(const PoolWindows&, const std::int8_t*, std::int8_t*, std::int64_t*, bool);
template void max_pool<std::uint8_t>(const PoolWindows&, const std::uint8_t*, std::uint8_t*, std::int64_t*, bool);

}  // namespace backpass
