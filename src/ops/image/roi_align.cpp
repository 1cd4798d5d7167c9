// RoiAlign: resamples rectangles of a feature map to a fixed size, bilinearly, without rounding their borders.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gradient/rule.hpp"
#include "graph/builder.hpp"
#include "graph/op.hpp"
#include "ops/image/roi_rules.hpp"
#include "support/parallel.hpp"
#include "support/printable.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.require(c.dtype(1) == c.dtype(0), "rois have element type ", name_of(c.dtype(1)), ": expected ",
            name_of(c.dtype(0)));
  c.require(c.dtype(2) == DType::int64, "batch_indices have element type ", name_of(c.dtype(2)), ": expected int64");
  std::string mode = c.node.attr_string("mode", "avg");
  c.require(mode == "avg" || mode == "max", "attribute mode is ", printable(mode), ": expected avg or max");
  std::string transform = c.node.attr_string("coordinate_transformation_mode", "half_pixel");
  c.require(transform == "half_pixel" || transform == "output_half_pixel",
            "attribute coordinate_transformation_mode is ", printable(transform),
            ": expected half_pixel or output_half_pixel");
  std::int64_t height = c.node.attr_int("output_height", 1);
  std::int64_t width = c.node.attr_int("output_width", 1);
  c.require(height >= 1 && width >= 1, "output is ", height, " x ", width, ": expected positive extents");
  c.require(c.node.attr_int("sampling_ratio", 0) >= 0, "attribute sampling_ratio is negative: expected 0 or more");
  const Shape& x = c.shape(0);
  const Shape& rois = c.shape(1);
  const Shape& batch = c.shape(2);
  c.require(x.size() == 4, "input is ", shown(x), ": expected [batch, channels, height, width]");
  c.require(rois.size() == 2 && (!rois[1].is_known() || rois[1].is(4)), "rois are ", shown(rois),
            ": expected [count, 4]");
  c.require(batch.size() == 1, "batch_indices are ", shown(batch), ": expected one axis");
  Dim count = c.unify(rois[0], batch[0], "number of rois and of batch_indices");
  c.set_shape(0, {count, x[1], height, width});
}

struct Spec {
  std::string label;
  std::int64_t batch, channels, height, width;  ///< of the input
  std::int64_t rois, out_height, out_width;
  std::int64_t sampling_ratio;
  double scale;
  bool half_pixel, is_max;
};

/// One sample: four neighbours in a plane and their weights.
template <class T>
struct Sample {
  std::int64_t at[4] = {0, 0, 0, 0};
  T weight[4] = {0, 0, 0, 0};
};

template <class T>
Sample<T> sample_at(const Spec& s, T y, T x) {
  Sample<T> result;
  if (!(y >= -1 && y <= static_cast<T>(s.height) && x >= -1 && x <= static_cast<T>(s.width))) return result;
  auto split = [](T position, std::int64_t extent, std::int64_t& low, std::int64_t& high) {
    position = std::max(position, T(0));
    low = static_cast<std::int64_t>(position);
    high = low + 1;
    if (low >= extent - 1) {
      low = high = extent - 1;
      return T(0);
    }
    return position - static_cast<T>(low);
  };
  std::int64_t y0, y1, x0, x1;
  T fy = split(y, s.height, y0, y1);
  T fx = split(x, s.width, x0, x1);
  const std::int64_t at[4] = {y0 * s.width + x0, y0 * s.width + x1, y1 * s.width + x0, y1 * s.width + x1};
  const T weight[4] = {(1 - fy) * (1 - fx), (1 - fy) * fx, fy * (1 - fx), fy * fx};
  std::copy_n(at, 4, result.at);
  std::copy_n(weight, 4, result.weight);
  return result;
}

/// The samples of one rectangle: grid per output element, row by row.
template <class T>
struct Grid {
  std::int64_t per_bin = 0;
  std::vector<Sample<T>> samples;
};

std::int64_t grid_extent(const Spec& s, double bin, std::int64_t roi) {
  constexpr double kMost = 65536;
  if (!(bin <= kMost)) {
    fail(s.label, " roi ", roi, " spans ", bin, " samples per output element: expected at most ", kMost,
         "; give finite, smaller rois or sampling_ratio");
  }
  return s.sampling_ratio > 0 ? s.sampling_ratio : std::max<std::int64_t>(0, static_cast<std::int64_t>(std::ceil(bin)));
}

template <class T>
void make_grid(const Spec& s, const T* roi, std::int64_t index, Grid<T>& grid) {
  auto scale = static_cast<T>(s.scale);
  T offset = s.half_pixel ? T(0.5) : T(0);
  T left = roi[0] * scale - offset;
  T top = roi[1] * scale - offset;
  T roi_width = roi[2] * scale - offset - left;
  T roi_height = roi[3] * scale - offset - top;
  if (!s.half_pixel) {
    roi_width = std::max(roi_width, T(1));
    roi_height = std::max(roi_height, T(1));
  }
  T bin_height = roi_height / static_cast<T>(s.out_height);
  T bin_width = roi_width / static_cast<T>(s.out_width);
  std::int64_t rows = grid_extent(s, static_cast<double>(bin_height), index);
  std::int64_t cols = grid_extent(s, static_cast<double>(bin_width), index);
  grid.per_bin = rows * cols;
  grid.samples.clear();
  for (std::int64_t i = 0; i < s.out_height * s.out_width; ++i) {
    for (std::int64_t j = 0; j < grid.per_bin; ++j) {
      const std::int64_t bin_row = i / s.out_width;
      const std::int64_t sample_row = j / cols;
      T y = top + static_cast<T>(bin_row) * bin_height +
            (static_cast<T>(sample_row) + T(0.5)) * bin_height / static_cast<T>(rows);
      T x = left + static_cast<T>(i % s.out_width) * bin_width +
            (static_cast<T>(j % cols) + T(0.5)) * bin_width / static_cast<T>(cols);
      grid.samples.push_back(sample_at(s, y, x));
    }
  }
}

/// One output element. "max" is over the weighted neighbours, as ONNX's reference has it.
template <class T>
T pool_bin(const Spec& s, const Sample<T>* samples, std::int64_t count, const T* plane) {
  T sum = 0;
  T best = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    for (int n = 0; n < 4; ++n) {
      T v = samples[i].weight[n] * plane[samples[i].at[n]];
      sum += v;
      best = (i == 0 && n == 0) || v > best ? v : best;
    }
  }
  return s.is_max ? best : sum / static_cast<T>(std::max<std::int64_t>(1, count));
}

template <class T>
void align(const Spec& s, const T* x, const T* rois, const std::int64_t* batch, T* y) {
  std::int64_t out = s.out_height * s.out_width;
  std::int64_t in = s.height * s.width;
  parallel_for(s.rois, 1, [&](std::int64_t begin, std::int64_t end) {
    Grid<T> grid;
    for (std::int64_t r = begin; r < end; ++r) {
      if (batch[r] < 0 || batch[r] >= s.batch) {
        fail(s.label, " batch index ", batch[r], " of roi ", r, ": expected [0, ", s.batch, ")");
      }
      make_grid(s, rois + r * 4, r, grid);
      for (std::int64_t c = 0; c < s.channels; ++c) {
        const T* plane = x + (batch[r] * s.channels + c) * in;
        T* to = y + (r * s.channels + c) * out;
        for (std::int64_t i = 0; i < out; ++i) {
          to[i] = in == 0 ? T(0) : pool_bin(s, grid.samples.data() + i * grid.per_bin, grid.per_bin, plane);
        }
      }
    }
  });
}

Spec spec_of(const PrepareContext& c, const Dims& x, const Dims& y) {
  return {c.node.label(),
          x[0],
          x[1],
          x[2],
          x[3],
          y[0],
          y[2],
          y[3],
          c.node.attr_int("sampling_ratio", 0),
          c.node.attr_float("spatial_scale", 1),
          c.node.attr_string("coordinate_transformation_mode", "half_pixel") == "half_pixel",
          c.node.attr_string("mode", "avg") == "max"};
}

Kernel prepare(PrepareContext& c) {
  Spec s = spec_of(c, c.in(0).dims, c.out(0).dims);
  Kernel kernel;
  visit_real(c.in(0).dtype, [&]<class T>() {
    kernel = [s](const KernelArgs& args) {
      align<T>(s, args.in<T>(0), args.in<T>(1), args.in<std::int64_t>(2), args.out<T>(0));
    };
  });
  return kernel;
}

/// Hands one output element's gradient to what it was made of.
template <class T>
void spread_bin(const Spec& s, const Sample<T>* samples, std::int64_t count, const T* plane, T dy, T* dx) {
  if (count == 0) return;
  const Sample<T>* best = samples;
  int corner = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    for (int n = 0; n < 4; ++n) {
      const Sample<T>& sample = samples[i];
      if (!s.is_max) {
        dx[sample.at[n]] += dy * sample.weight[n] / static_cast<T>(count);
      } else if (sample.weight[n] * plane[sample.at[n]] > best->weight[corner] * plane[best->at[corner]]) {
        best = &sample;
        corner = n;
      }
    }
  }
  if (s.is_max) dx[best->at[corner]] += dy * best->weight[corner];
}

/// Rectangles one after the other, channels side by side: the order of additions does not depend on threads.
template <class T>
void align_backward(const Spec& s, const T* dy, const T* x, const T* rois, const std::int64_t* batch, T* dx) {
  std::int64_t out = s.out_height * s.out_width;
  std::int64_t in = s.height * s.width;
  std::fill_n(dx, s.batch * s.channels * in, T(0));
  if (in == 0) return;
  Grid<T> grid;
  for (std::int64_t r = 0; r < s.rois; ++r) {
    if (batch[r] < 0 || batch[r] >= s.batch) {
      fail(s.label, " batch index ", batch[r], " of roi ", r, ": expected [0, ", s.batch, ")");
    }
    make_grid(s, rois + r * 4, r, grid);
    parallel_for(s.channels, grain_for(out * grid.per_bin * 4), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        const std::int64_t plane = (batch[r] * s.channels + c) * in;
        for (std::int64_t i = 0; i < out; ++i) {
          spread_bin(s, grid.samples.data() + i * grid.per_bin, grid.per_bin, x + plane,
                     dy[(r * s.channels + c) * out + i], dx + plane);
        }
      }
    });
  }
}

/// dX from dY, X, rois, batch_indices.
Kernel prepare_gradient(PrepareContext& c) {
  Spec s = spec_of(c, c.in(1).dims, c.in(0).dims);
  Kernel kernel;
  visit_real(c.in(0).dtype, [&]<class T>() {
    kernel = [s](const KernelArgs& args) {
      align_backward<T>(s, args.in<T>(0), args.in<T>(1), args.in<T>(2), args.in<std::int64_t>(3), args.out<T>(0));
    };
  });
  return kernel;
}

void fused_gradient(GradientContext& g) {
  if (g.wants(1)) return roi_align_gradient(g);
  AttributeList attributes(g.node.attributes.begin(), g.node.attributes.end());
  g.set(0, g.op("RoiAlignGrad", {g.dy(), g.x(0), g.x(1), g.x(2)}, attributes, "backpass"));
}

const Register roi_align_grad{{.name = "RoiAlignGrad",
                               .domain = "backpass",
                               .doc = "gradient of RoiAlign with respect to the feature map",
                               .inputs = {4, 4},
                               .types = types::floats,
                               .infer = [](InferContext& c) { c.set_type(0, c.type(1)); },
                               .prepare = prepare_gradient,
                               .half_through_float = true}};

const Register roi_align{{.name = "RoiAlign",
                          .since = 22,
                          .doc = "bilinear resampling of rectangles of a feature map",
                          .inputs = {3, 3},
                          .types = types::floats,
                          .infer = infer,
                          .prepare = prepare,
                          .gradient = roi_align_gradient,
                          .fused_gradient = fused_gradient,
                          .half_through_float = true}};

void lift_16(Builder&, Node& node) {
  node.attributes["coordinate_transformation_mode"] = std::string("output_half_pixel");
}
const RegisterAdapter below_16{{.op = "RoiAlign", .below = 16, .lift = lift_16}};

}  // namespace
}  // namespace backpass
