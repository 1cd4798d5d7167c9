// Where GridSample reads: the elements around each point of the grid, and their weights.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.hpp"
#include "support/printable.hpp"

namespace backpass::grid_sample {

enum class Mode : std::uint8_t { nearest, linear, cubic };
enum class Padding : std::uint8_t { zeros, border, reflection };

struct Options {
  Mode mode = Mode::linear;
  Padding padding = Padding::zeros;
  bool align_corners = false;
};

inline Options options_of(const Node& node) {
  Options o;
  const std::string mode = node.attr_string("mode", "linear");
  if (mode != "linear" && mode != "nearest" && mode != "cubic")
    fail(node.label(), " attribute 'mode': got ", printable(mode), ", expected linear, nearest or cubic");
  o.mode = mode == "linear" ? Mode::linear : mode == "nearest" ? Mode::nearest : Mode::cubic;
  const std::string padding = node.attr_string("padding_mode", "zeros");
  if (padding != "zeros" && padding != "border" && padding != "reflection")
    fail(node.label(), " attribute 'padding_mode': got ", printable(padding), ", expected zeros, border or reflection");
  o.padding = padding == "zeros" ? Padding::zeros : padding == "border" ? Padding::border : Padding::reflection;
  o.align_corners = node.attr_int("align_corners", 0) != 0;
  return o;
}

/// One spatial axis of X.
struct Axis {
  std::int64_t length, stride;
};

constexpr std::size_t kMaxTapsPerAxis = 4;

/// Positions along one axis (negative: outside) and their weights.
template <class T>
struct AxisTaps {
  std::array<std::int64_t, kMaxTapsPerAxis> index;
  std::array<T, kMaxTapsPerAxis> weight;
  std::array<T, kMaxTapsPerAxis> slope;  ///< of the weights, by the grid's coordinate
};

template <class T>
T reflected(T x, T low, T high) {
  const T range = high - low;
  if (range <= 0) return low;
  T distance = std::fmod(std::abs(x - low), 2 * range);
  return low + (distance > range ? 2 * range - distance : distance);
}

template <class T>
class Sampler {
 public:
  Sampler(const Options& options, std::vector<Axis> axes) : o_(options), axes_(std::move(axes)) {
    taps_per_axis_ = o_.mode == Mode::nearest ? 1 : o_.mode == Mode::linear ? 2 : 4;
    for (std::size_t i = 0; i < axes_.size(); ++i) taps_ *= taps_per_axis_;
  }

  std::size_t taps() const { return taps_; }

  /// Offsets into one channel (negative: zero) and weights of one point, whose coordinates run from the last axis on.
  void find(const T* point, std::int64_t* index, T* weight) const {
    index[0] = 0, weight[0] = 1;
    std::size_t count = 1;
    for (std::size_t a = 0; a < axes_.size(); ++a) {
      const AxisTaps<T> taps = along(axes_[a], point[axes_.size() - 1 - a]);
      // Later taps first, so that the entry each one grows from is still there.
      for (std::size_t i = count; i-- > 0;) {
        const std::int64_t base = index[i];
        const T factor = weight[i];
        for (std::size_t t = 0; t < taps_per_axis_; ++t) {
          const bool outside = base < 0 || taps.index[t] < 0;
          index[i * taps_per_axis_ + t] = outside ? -1 : base + taps.index[t] * axes_[a].stride;
          weight[i * taps_per_axis_ + t] = factor * taps.weight[t];
        }
      }
      count *= taps_per_axis_;
    }
  }

  /// The same, with the slopes of the weights by each coordinate: slope[a * taps() + t] belongs to axis a.
  void find_slopes(const T* point, std::int64_t* index, T* weight, T* slope) const {
    find(point, index, weight);
    for (std::size_t a = 0; a < axes_.size(); ++a) {
      T* to = slope + a * taps_;
      std::fill_n(to, taps_, T(1));
      std::size_t inner = taps_;
      for (std::size_t b = 0; b < axes_.size(); ++b) {
        const AxisTaps<T> taps = along(axes_[b], point[axes_.size() - 1 - b]);
        inner /= taps_per_axis_;
        const auto& factor = a == b ? taps.slope : taps.weight;
        for (std::size_t t = 0; t < taps_; ++t) to[t] *= factor[t / inner % taps_per_axis_];
      }
    }
  }

 private:
  T low() const { return o_.align_corners ? T(0) : T(-0.5); }
  T high(const Axis& axis) const { return static_cast<T>(axis.length) - (o_.align_corners ? T(1) : T(0.5)); }

  // The coordinate in elements, brought inside as the padding says.
  T coordinate(const Axis& axis, T n, T& slope) const {
    const auto length = static_cast<T>(axis.length);
    slope = (o_.align_corners ? length - 1 : length) / 2;
    T x = o_.align_corners ? (n + 1) / 2 * (length - 1) : ((n + 1) * length - 1) / 2;
    if (std::isnan(x)) {
      slope = 0;
      return T(-2) - length;
    }
    if (o_.mode == Mode::nearest) x = std::nearbyint(x);
    if (x < low() || x > high(axis)) {
      if (o_.padding == Padding::border) {
        x = std::clamp(x, T(0), length - 1);
        slope = 0;
      }
      if (o_.padding == Padding::reflection) {
        const T range = std::max(high(axis) - low(), T(1));
        const bool turned = std::fmod(std::abs(x - low()), 2 * range) > range;
        if ((x < low()) != turned) slope = -slope;
        x = reflected(x, low(), high(axis));
      }
    }
    return std::clamp(x, T(-4), length + 4);
  }

  std::int64_t element(const Axis& axis, std::int64_t i) const {
    if (o_.padding == Padding::zeros) return i >= 0 && i < axis.length ? i : -1;
    if (o_.padding == Padding::reflection && (i < 0 || i >= axis.length))
      i = static_cast<std::int64_t>(reflected(static_cast<T>(i), low(), high(axis)));
    return std::clamp<std::int64_t>(i, 0, axis.length - 1);
  }

  AxisTaps<T> along(const Axis& axis, T n) const {
    T d = 0;
    const T x = coordinate(axis, n, d);
    const T below = std::floor(x);
    const T f = x - below;
    const auto i = static_cast<std::int64_t>(below);
    if (o_.mode == Mode::nearest) return {{element(axis, i)}, {T(1)}, {T(0)}};
    if (o_.mode == Mode::linear) return {{element(axis, i), element(axis, i + 1)}, {1 - f, f}, {-d, d}};
    constexpr T a = T(-0.75);
    auto inner = [](T v) { return ((a + 2) * v - (a + 3)) * v * v + 1; };
    auto outer = [](T v) { return ((a * v - 5 * a) * v + 8 * a) * v - 4 * a; };
    auto inner_slope = [](T v) { return (3 * (a + 2) * v - 2 * (a + 3)) * v; };
    auto outer_slope = [](T v) { return (3 * a * v - 10 * a) * v + 8 * a; };
    return {{element(axis, i - 1), element(axis, i), element(axis, i + 1), element(axis, i + 2)},
            {outer(f + 1), inner(f), inner(1 - f), outer(2 - f)},
            {d * outer_slope(f + 1), d * inner_slope(f), -d * inner_slope(1 - f), -d * outer_slope(2 - f)}};
  }

  Options o_;
  std::vector<Axis> axes_;
  std::size_t taps_per_axis_ = 1, taps_ = 1;
};

struct Layout {
  std::int64_t batch, channels, plane, points, rank;  ///< plane: elements of one channel; points: of one output channel
};

/// The spatial axes of X, and sizes; `y`: extents of the output.
inline std::pair<Layout, std::vector<Axis>> layout_of(const Dims& x, const Dims& y) {
  Layout l{x[0], x[1], 1, 1, static_cast<std::int64_t>(x.size()) - 2};
  std::vector<Axis> axes(x.size() - 2);
  for (std::size_t i = x.size(); i-- > 2;) {
    axes[i - 2] = {x[i], l.plane};
    l.plane *= x[i];
    l.points *= y[i];
  }
  return {l, std::move(axes)};
}

}  // namespace backpass::grid_sample
