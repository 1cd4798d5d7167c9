#include "ops/image/resample.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>

#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

std::int64_t extent(const Dims& dims, std::size_t begin, std::size_t end) {
  return std::accumulate(dims.begin() + static_cast<std::ptrdiff_t>(begin),
                         dims.begin() + static_cast<std::ptrdiff_t>(end), std::int64_t{1}, std::multiplies<>());
}

// Runs of elements that lie together in input and output: what follows the last resampled axis.
template <class T>
void copy_row(const AxisTaps& taps, std::int64_t inner, const T* in, T* out, const T& fill) {
  for (std::int64_t k = 0; k < taps.out; ++k) {
    const auto i = static_cast<std::size_t>(k);
    if (!taps.outside.empty() && taps.outside[i] != 0) {
      std::fill_n(out + k * inner, inner, fill);
    } else if (inner == 1) {
      out[k] = in[taps.index[i]];
    } else {
      std::copy_n(in + taps.index[i] * inner, inner, out + k * inner);
    }
  }
}

// Everything below axis number `level`; equal neighbouring rows are made once and copied.
template <class T>
void nearest_block(const Resampling& r, std::size_t level, const T* in, T* out, const T& fill) {
  const AxisTaps& taps = r.axes[level];
  const std::size_t rank = r.in.size();
  if (level + 1 == r.axes.size()) return copy_row(taps, extent(r.in, taps.axis + 1, rank), in, out, fill);
  const std::size_t next = r.axes[level + 1].axis;
  const std::int64_t between = extent(r.in, taps.axis + 1, next);  // axes that keep their extents
  const std::int64_t in_block = extent(r.in, next, rank);
  const std::int64_t out_block = extent(r.out, next, rank);
  for (std::int64_t k = 0; k < taps.out; ++k) {
    const auto i = static_cast<std::size_t>(k);
    T* to = out + k * between * out_block;
    const bool outside = !taps.outside.empty() && taps.outside[i] != 0;
    const bool repeated = k > 0 && taps.outside.empty() && taps.index[i] == taps.index[i - 1];
    if (outside) {
      std::fill_n(to, between * out_block, fill);
    } else if (repeated) {
      std::copy_n(to - between * out_block, between * out_block, to);
    } else {
      const T* from = in + taps.index[i] * between * in_block;
      for (std::int64_t m = 0; m < between; ++m)
        nearest_block(r, level + 1, from + m * in_block, to + m * out_block, fill);
    }
  }
}

// The last axis: out[o, k] = sum over t of weight[k, t] * in[o, index[k, t]]
template <class T>
void weigh_last_axis(const AxisTaps& taps, const std::vector<T>& weights, std::int64_t outer, const T* in, T* out) {
  const std::int64_t n = taps.taps;
  parallel_for(outer, grain_for(taps.out * n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t o = begin; o < end; ++o) {
      const T* from = in + o * taps.in;
      const std::int64_t* index = taps.index.data();
      const T* weight = weights.data();
      T* to = out + o * taps.out;
      if (n == 2) {
        for (std::int64_t k = 0; k < taps.out; ++k, index += 2, weight += 2)
          to[k] = weight[0] * from[index[0]] + weight[1] * from[index[1]];
        continue;
      }
      for (std::int64_t k = 0; k < taps.out; ++k, index += n, weight += n) {
        T sum = 0;
        for (std::int64_t t = 0; t < n; ++t) sum += weight[t] * from[index[t]];
        to[k] = sum;
      }
    }
  });
}

// Other axes, whole rows at a time: out[o, k, i] = sum over t of weight[k, t] * in[o, index[k, t], i]
template <class T>
void weigh_axis(const AxisTaps& taps, const std::vector<T>& weights, std::int64_t outer, std::int64_t inner,
                const T* in, T* out) {
  const std::int64_t n = taps.taps;
  parallel_for(outer * taps.out, grain_for(inner * n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const T* from = in + row / taps.out * taps.in * inner;
      const std::int64_t* index = taps.index.data() + row % taps.out * n;
      const T* weight = weights.data() + row % taps.out * n;
      T* to = out + row * inner;
      const T* a = from + index[0] * inner;
      const T* b = from + index[1] * inner;
      for (std::int64_t i = 0; i < inner; ++i) to[i] = weight[0] * a[i] + weight[1] * b[i];
      for (std::int64_t t = 2; t < n; ++t) {
        const T* c = from + index[t] * inner;
        for (std::int64_t i = 0; i < inner; ++i) to[i] += weight[t] * c[i];
      }
    }
  });
}

template <class T>
void fill_outside(const AxisTaps& taps, std::int64_t outer, std::int64_t inner, T value, T* out) {
  for (std::int64_t k = 0; k < static_cast<std::int64_t>(taps.outside.size()); ++k) {
    if (taps.outside[static_cast<std::size_t>(k)] == 0) continue;
    for (std::int64_t o = 0; o < outer; ++o) std::fill_n(out + (o * taps.out + k) * inner, inner, value);
  }
}

template <class T>
T* buffer(int slot, std::int64_t count) {
  thread_local std::array<std::vector<T>, 2> memory;
  std::vector<T>& m = memory[static_cast<std::size_t>(slot)];
  if (static_cast<std::int64_t>(m.size()) < count) m.resize(static_cast<std::size_t>(count));
  return m.data();
}

/// Passes over one plane: the extents from the first resampled axis on.
template <class T>
class PlaneResampler {
 public:
  explicit PlaneResampler(const Resampling& r) : r_(r), first_(r.axes[0].axis) {
    for (std::size_t i = 0; i < r.axes.size(); ++i) {
      order_.push_back(i);
      weights_.emplace_back(r.axes[i].weight.begin(), r.axes[i].weight.end());
    }
    // What shrinks goes first, so that later passes have less to do; of what grows, the last axis, where elements are
    // fetched one by one.
    auto rank = [&](std::size_t i) {
      const AxisTaps& taps = r.axes[i];
      const bool grows = taps.out >= taps.in;
      const double ratio = static_cast<double>(taps.out) / static_cast<double>(std::max<std::int64_t>(taps.in, 1));
      return std::pair(grows, grows ? -static_cast<double>(i) : ratio);
    };
    std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) { return rank(a) < rank(b); });
  }

  void run(const T* in, T* out) const {
    Dims dims(r_.in.begin() + static_cast<std::ptrdiff_t>(first_), r_.in.end());
    const T* from = in;
    for (std::size_t pass = 0; pass < order_.size(); ++pass) {
      const AxisTaps& taps = r_.axes[order_[pass]];
      const std::size_t axis = taps.axis - first_;
      const std::int64_t outer = extent(dims, 0, axis);
      const std::int64_t inner = extent(dims, axis + 1, dims.size());
      dims[axis] = taps.out;
      T* to = pass + 1 == order_.size() ? out : buffer<T>(static_cast<int>(pass % 2), outer * taps.out * inner);
      const std::vector<T>& weights = weights_[order_[pass]];
      if (inner == 1) {
        weigh_last_axis(taps, weights, outer, from, to);
      } else {
        weigh_axis(taps, weights, outer, inner, from, to);
      }
      fill_outside(taps, outer, inner, static_cast<T>(r_.extrapolation), to);
      from = to;
    }
  }

 private:
  const Resampling& r_;
  std::size_t first_;
  std::vector<std::size_t> order_;
  std::vector<std::vector<T>> weights_;
};

template <class T>
T to_integer(double x) {
  const double low = static_cast<double>(std::numeric_limits<T>::min());
  // The largest double not above the largest T: for 64 bits the conversion itself would round up and overflow.
  const double high = sizeof(T) < 8 ? static_cast<double>(std::numeric_limits<T>::max())
                                    : std::nextafter(static_cast<double>(std::numeric_limits<T>::max()), 0.0);
  return static_cast<T>(std::clamp(std::nearbyint(x), low, high));
}

}  // namespace

template <class T>
void resample_nearest(const Resampling& r, const T* in, T* out, const T& fill) {
  const std::size_t first = r.axes[0].axis;
  const std::int64_t planes = extent(r.in, 0, first);
  const std::int64_t in_plane = extent(r.in, first, r.in.size());
  const std::int64_t out_plane = extent(r.out, first, r.out.size());
  parallel_for(planes, grain_for(out_plane), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) nearest_block(r, 0, in + p * in_plane, out + p * out_plane, fill);
  });
}

template <class T>
void resample_weighted(const Resampling& r, const T* in, T* out) {
  using Work = std::conditional_t<std::is_floating_point_v<T>, T, double>;
  const std::size_t first = r.axes[0].axis;
  const std::int64_t planes = extent(r.in, 0, first);
  const std::int64_t in_plane = extent(r.in, first, r.in.size());
  const std::int64_t out_plane = extent(r.out, first, r.out.size());
  const PlaneResampler<Work> resampler(r);
  const std::int64_t work = (in_plane + out_plane) * 4;
  parallel_for(planes, grain_for(work), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      if constexpr (std::is_floating_point_v<T>) {
        resampler.run(in + p * in_plane, out + p * out_plane);
      } else {
        std::vector<double> from(in + p * in_plane, in + (p + 1) * in_plane);
        std::vector<double> to(static_cast<std::size_t>(out_plane));
        resampler.run(from.data(), to.data());
        std::transform(to.begin(), to.end(), out + p * out_plane, to_integer<T>);
      }
    }
  });
}

template void resample_nearest(const Resampling&, const std::uint8_t*, std::uint8_t*, const std::uint8_t&);
template void resample_nearest(const Resampling&, const std::uint16_t*, std::uint16_t*, const std::uint16_t&);
template void resample_nearest(const Resampling&, const std::uint32_t*, std::uint32_t*, const std::uint32_t&);
template void resample_nearest(const Resampling&, const std::uint64_t*, std::uint64_t*, const std::uint64_t&);
template void resample_nearest(const Resampling&, const Bytes16*, Bytes16*, const Bytes16&);
template void resample_nearest(const Resampling&, const std::string*, std::string*, const std::string&);

template void resample_weighted(const Resampling&, const float*, float*);
template void resample_weighted(const Resampling&, const double*, double*);
template void resample_weighted(const Resampling&, const std::int8_t*, std::int8_t*);
template void resample_weighted(const Resampling&, const std::int16_t*, std::int16_t*);
template void resample_weighted(const Resampling&, const std::int32_t*, std::int32_t*);
template void resample_weighted(const Resampling&, const std::int64_t*, std::int64_t*);
template void resample_weighted(const Resampling&, const std::uint8_t*, std::uint8_t*);
template void resample_weighted(const Resampling&, const std::uint16_t*, std::uint16_t*);
template void resample_weighted(const Resampling&, const std::uint32_t*, std::uint32_t*);
template void resample_weighted(const Resampling&, const std::uint64_t*, std::uint64_t*);

}  // namespace backpass
