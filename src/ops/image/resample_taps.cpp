// Where each output element of a resampling comes from.
#include <algorithm>
#include <cmath>

#include "ops/image/resample.hpp"

namespace backpass {
namespace {

// The input coordinate of output position x.
double source_of(Coordinates mode, const ResampleAxis& a, double x) {
  const double half_pixel = (x + 0.5) / a.scale - 0.5;
  const double last = static_cast<double>(a.in) - 1;
  switch (mode) {
    case Coordinates::half_pixel:
      return half_pixel;
    case Coordinates::half_pixel_symmetric: {
      const double adjustment = static_cast<double>(a.out) / a.length;
      return static_cast<double>(a.in) / 2 * (1 - adjustment) + half_pixel;
    }
    case Coordinates::pytorch_half_pixel:
      return a.length > 1 ? half_pixel : 0;
    case Coordinates::align_corners:
      return a.length == 1 ? 0 : x * last / (a.length - 1);
    case Coordinates::asymmetric:
      return x / a.scale;
    case Coordinates::tf_half_pixel_for_nn:
      return (x + 0.5) / a.scale;
    case Coordinates::tf_crop_and_resize:
      break;
  }
  if (a.length == 1) return 0.5 * (a.roi_begin + a.roi_end) * last;
  return a.roi_begin * last + x * (a.roi_end - a.roi_begin) * last / (a.length - 1);
}

std::int64_t rounded(Rounding rounding, double x) {
  const double below = std::floor(x);
  const double fraction = x - below;
  bool up = false;
  switch (rounding) {
    case Rounding::prefer_floor:
      up = fraction > 0.5;
      break;
    case Rounding::prefer_ceil:
      up = fraction >= 0.5;
      break;
    case Rounding::floor:
      break;
    case Rounding::ceil:
      up = fraction > 0;
      break;
  }
  return static_cast<std::int64_t>(below) + (up ? 1 : 0);
}

double filter(const ResampleOptions& o, double x) {
  x = std::abs(x);
  if (o.mode == ResampleMode::linear) return std::max(0.0, 1 - x);
  const double a = o.cubic_a;
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((x - 5) * x + 8) * x * a - 4 * a : 0;
}

// Weights of the input positions around `source`; a filter for shrinking is as much wider as the output is smaller.
void add_weights(const ResampleOptions& o, const ResampleAxis& a, double source, AxisTaps& taps) {
  const double stretch = o.antialias ? std::min(a.scale, 1.0) : 1;
  const auto base = static_cast<std::int64_t>(std::floor(source));
  const std::int64_t first = base + 1 - taps.taps / 2;
  const std::size_t begin = taps.weight.size();
  double sum = 0;
  for (std::int64_t i = 0; i < taps.taps; ++i) {
    const std::int64_t position = first + i;
    const bool outside = position < 0 || position >= a.in;
    const double weight =
        o.exclude_outside && outside ? 0 : filter(o, (static_cast<double>(position) - source) * stretch);
    taps.index.push_back(std::clamp<std::int64_t>(position, 0, a.in - 1));
    taps.weight.push_back(weight);
    sum += weight;
  }
  if (!(o.antialias || o.exclude_outside) || sum == 0) return;
  for (std::size_t i = begin; i < taps.weight.size(); ++i) taps.weight[i] /= sum;
}

std::int64_t tap_count(const ResampleOptions& o, const ResampleAxis& a) {
  if (o.mode == ResampleMode::nearest) return 1;
  const double radius = o.mode == ResampleMode::linear ? 1 : 2;
  const double stretch = o.antialias ? std::min(a.scale, 1.0) : 1;
  return 2 * static_cast<std::int64_t>(std::ceil(radius / stretch));
}

}  // namespace

AxisTaps make_taps(const ResampleOptions& options, const ResampleAxis& axis, std::size_t position) {
  AxisTaps taps;
  taps.axis = position, taps.in = axis.in, taps.out = axis.out;
  taps.taps = tap_count(options, axis);
  const auto count = static_cast<std::size_t>(axis.out * taps.taps);
  taps.index.reserve(count), taps.weight.reserve(count);
  const double last = static_cast<double>(axis.in) - 1;
  for (std::int64_t i = 0; i < axis.out; ++i) {
    double source = source_of(options.coordinates, axis, static_cast<double>(i));
    if (options.coordinates == Coordinates::tf_crop_and_resize && !(source >= 0 && source <= last)) {
      taps.outside.resize(static_cast<std::size_t>(axis.out), 0);
      taps.outside[static_cast<std::size_t>(i)] = 1;
      source = 0;
    }
    // Far outside everything is the edge; this also keeps the conversion to integers defined.
    const double margin = static_cast<double>(taps.taps) + 1;
    source = std::clamp(std::isnan(source) ? 0 : source, -margin, last + margin);
    if (options.mode == ResampleMode::nearest) {
      taps.index.push_back(std::clamp<std::int64_t>(rounded(options.rounding, source), 0, axis.in - 1));
    } else {
      add_weights(options, axis, source, taps);
    }
  }
  return taps;
}

}  // namespace backpass
