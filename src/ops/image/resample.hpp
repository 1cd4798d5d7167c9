// Resampling along axes: where each output element comes from, and the loops that fetch it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backpass/tensor.hpp"

namespace backpass {

enum class ResampleMode : std::uint8_t { nearest, linear, cubic };

enum class Coordinates : std::uint8_t {
  half_pixel,
  half_pixel_symmetric,
  pytorch_half_pixel,
  align_corners,
  asymmetric,
  tf_crop_and_resize,
  tf_half_pixel_for_nn,
};

enum class Rounding : std::uint8_t { prefer_floor, prefer_ceil, floor, ceil };

struct ResampleOptions {
  ResampleMode mode = ResampleMode::nearest;
  Coordinates coordinates = Coordinates::half_pixel;
  Rounding rounding = Rounding::prefer_floor;
  double cubic_a = -0.75;
  bool antialias = false;
  bool exclude_outside = false;
  double extrapolation = 0;
};

/// One axis of the tensor.
struct ResampleAxis {
  std::int64_t in = 0;
  std::int64_t out = 0;
  double scale = 1;   ///< wanted ratio of the lengths; `out` is rounded
  double length = 0;  ///< wanted length of the output, before rounding
  double roi_begin = 0;
  double roi_end = 1;
};

/// For each output position: `taps` input positions (inside the axis) and their weights.
struct AxisTaps {
  std::size_t axis = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::int64_t taps = 1;
  std::vector<std::int64_t> index;
  std::vector<double> weight;
  std::vector<char> outside;  ///< positions that take the extrapolation value; empty: none
};

AxisTaps make_taps(const ResampleOptions& options, const ResampleAxis& axis, std::size_t position);

/// A tensor to resample along some axes, which are sorted by position; the others keep their extents.
struct Resampling {
  Dims in, out;
  std::vector<AxisTaps> axes;
  double extrapolation = 0;
};

/// Nearest neighbour: elements are only moved. T is any type of the right size, `fill` the extrapolation value.
template <class T>
void resample_nearest(const Resampling& r, const T* in, T* out, const T& fill);

/// Weighted sums, axis by axis. T is float, double, or an integer (computed in double, rounded, saturated).
template <class T>
void resample_weighted(const Resampling& r, const T* in, T* out);

}  // namespace backpass
