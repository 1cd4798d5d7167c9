// GridSample: reads a tensor at the places a grid of coordinates names.
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "graph/builder.hpp"
#include "ops/op.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

enum class Mode : std::uint8_t { nearest, linear, cubic };
enum class Padding : std::uint8_t { zeros, border, reflection };

struct Options {
  Mode mode = Mode::linear;
  Padding padding = Padding::zeros;
  bool align_corners = false;
};

Options options_of(const Node& node) {
  Options o;
  const std::string mode = node.attr_string("mode", "linear");
  if (mode != "linear" && mode != "nearest" && mode != "cubic")
    fail(node.label(), " attribute 'mode': got '", mode, "', expected linear, nearest or cubic");
  o.mode = mode == "linear" ? Mode::linear : mode == "nearest" ? Mode::nearest : Mode::cubic;
  const std::string padding = node.attr_string("padding_mode", "zeros");
  if (padding != "zeros" && padding != "border" && padding != "reflection")
    fail(node.label(), " attribute 'padding_mode': got '", padding, "', expected zeros, border or reflection");
  o.padding = padding == "zeros" ? Padding::zeros : padding == "border" ? Padding::border : Padding::reflection;
  o.align_corners = node.attr_int("align_corners", 0) != 0;
  return o;
}

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  const Options options = options_of(c.node);
  if (options.mode != Mode::nearest && !is_float(c.dtype(0)))
    fail<Unsupported>(c.node.label(), " mode ", c.node.attr_string("mode", "linear"), " for ", name_of(c.dtype(0)),
                      ": expected a floating-point type");
  c.require(is_float(c.dtype(1)), "element type of grid: got ", name_of(c.dtype(1)),
            ", expected a floating-point type");
  const Shape &x = c.shape(0), &grid = c.shape(1);
  c.require(x.size() >= 3, "rank of X: got ", x.size(), ", expected at least 3");
  c.require(grid.size() == x.size(), "rank of grid: got ", grid.size(), ", expected ", x.size(), " as X");
  c.unify(grid.back(), static_cast<std::int64_t>(x.size()) - 2, "last extent of grid");
  Shape out{c.unify(x[0], grid[0], "batch of X and grid"), x[1]};
  out.insert(out.end(), grid.begin() + 1, grid.end() - 1);
  c.set_shape(0, std::move(out));
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

 private:
  T low() const { return o_.align_corners ? T(0) : T(-0.5); }
  T high(const Axis& axis) const { return static_cast<T>(axis.length) - (o_.align_corners ? T(1) : T(0.5)); }

  // The coordinate in elements, brought inside as the padding says.
  T coordinate(const Axis& axis, T n) const {
    const auto length = static_cast<T>(axis.length);
    T x = o_.align_corners ? (n + 1) / 2 * (length - 1) : ((n + 1) * length - 1) / 2;
    if (std::isnan(x)) return T(-2) - length;
    if (o_.mode == Mode::nearest) x = std::nearbyint(x);
    if (x < low() || x > high(axis)) {
      if (o_.padding == Padding::border) x = std::clamp(x, T(0), length - 1);
      if (o_.padding == Padding::reflection) x = reflected(x, low(), high(axis));
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
    const T x = coordinate(axis, n);
    const T below = std::floor(x);
    const T f = x - below;
    const auto i = static_cast<std::int64_t>(below);
    if (o_.mode == Mode::nearest) return {{element(axis, i)}, {T(1)}};
    if (o_.mode == Mode::linear) return {{element(axis, i), element(axis, i + 1)}, {1 - f, f}};
    constexpr T a = T(-0.75);
    auto inner = [](T d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
    auto outer = [](T d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
    return {{element(axis, i - 1), element(axis, i), element(axis, i + 1), element(axis, i + 2)},
            {outer(f + 1), inner(f), inner(1 - f), outer(2 - f)}};
  }

  Options o_;
  std::vector<Axis> axes_;
  std::size_t taps_per_axis_ = 1, taps_ = 1;
};

struct Layout {
  std::int64_t batch, channels, plane, points, rank;  ///< plane: elements of one channel; points: of one output channel
};

// Points are found once per block and used for all channels.
template <class T, class G>
void sample(const Layout& l, const Sampler<G>& sampler, const T* x, const G* grid, T* y) {
  constexpr std::int64_t kPoints = 128;
  const std::int64_t blocks = (l.points + kPoints - 1) / kPoints;
  const std::size_t taps = sampler.taps();
  const std::int64_t work = kPoints * static_cast<std::int64_t>(taps) * (l.channels + 4);
  parallel_for(l.batch * blocks, grain_for(work), [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t> index(kPoints * taps);
    std::vector<G> weight(kPoints * taps);
    for (std::int64_t block = begin; block < end; ++block) {
      const std::int64_t n = block / blocks;
      const std::int64_t first = block % blocks * kPoints;
      const std::int64_t count = std::min(kPoints, l.points - first);
      for (std::int64_t p = 0; p < count; ++p) {
        const auto at = static_cast<std::size_t>(p) * taps;
        sampler.find(grid + (n * l.points + first + p) * l.rank, index.data() + at, weight.data() + at);
      }
      for (std::int64_t ch = 0; ch < l.channels; ++ch) {
        const T* from = x + (n * l.channels + ch) * l.plane;
        T* to = y + (n * l.channels + ch) * l.points + first;
        for (std::int64_t p = 0; p < count; ++p) {
          const auto at = static_cast<std::size_t>(p) * taps;
          if constexpr (!std::is_floating_point_v<T>) {
            to[p] = index[at] < 0 ? T{} : from[index[at]];
          } else {
            T sum = 0;
            for (std::size_t t = at; t < at + taps; ++t)
              if (index[t] >= 0) sum += static_cast<T>(weight[t]) * from[index[t]];
            to[p] = sum;
          }
        }
      }
    }
  });
}

Kernel prepare(PrepareContext& c) {
  const Dims& x = c.in(0).dims;
  const Dims& out = c.out(0).dims;
  Layout l{x[0], x[1], 1, 1, c.in(0).rank() - 2};
  std::vector<Axis> axes(x.size() - 2);
  for (std::size_t i = x.size(); i-- > 2;) {
    axes[i - 2] = {x[i], l.plane};
    l.plane *= x[i];
    l.points *= out[i];
  }
  c.require(l.plane > 0 || l.batch * l.channels * l.points == 0, "X: got no elements to sample, expected some");
  const Options options = options_of(c.node);
  const bool moves = options.mode == Mode::nearest && !is_float(c.in(0).dtype);
  return [=, dtype = c.in(0).dtype, grid_type = c.in(1).dtype](const KernelArgs& args) {
    if (l.batch * l.channels * l.points == 0) return;
    visit_real(grid_type, [&]<class G>() {
      const Sampler<G> sampler(options, axes);
      auto run = [&]<class T>() { sample<T, G>(l, sampler, args.in<T>(0), args.in<G>(1), args.out<T>(0)); };
      moves ? visit_storage(dtype, run) : visit_real(dtype, run);
    });
  };
}

const Register grid_sample{{.name = "GridSample",
                            .since = 22,
                            .doc = "Reads a tensor at the places a grid of coordinates names.",
                            .inputs = {2, 2},
                            .types = types::movable,
                            .infer = infer,
                            .prepare = prepare,
                            .half_through_float = true}};

// Before opset 20 the modes were named for two dimensions.
void lift_before_20(Builder&, Node& node) {
  const std::string mode = node.attr_string("mode", "bilinear");
  if (mode == "bilinear") node.attributes.insert_or_assign("mode", std::string("linear"));
  if (mode == "bicubic") node.attributes.insert_or_assign("mode", std::string("cubic"));
}
const RegisterAdapter grid_sample_20{{.op = "GridSample", .below = 20, .lift = lift_before_20}};

}  // namespace
}  // namespace backpass
