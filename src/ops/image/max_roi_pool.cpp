// MaxRoiPool: largest element in each cell of a grid laid over rectangles of a feature map.
#include <algorithm>
#include <cmath>
#include <string>

#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "ops/image/roi_rules.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(0));
  c.require(c.dtype(1) == c.dtype(0), "rois have element type ", name_of(c.dtype(1)), ": expected ",
            name_of(c.dtype(0)));
  std::vector<std::int64_t> pooled = c.node.attr_ints("pooled_shape");
  c.require(pooled.size() == 2 && pooled[0] >= 1 && pooled[1] >= 1, "attribute pooled_shape is ", shown(pooled),
            ": expected two positive extents");
  const Shape& x = c.shape(0);
  const Shape& rois = c.shape(1);
  c.require(x.size() == 4, "input is ", shown(x), ": expected [batch, channels, height, width]");
  c.require(rois.size() == 2 && (!rois[1].is_known() || rois[1].is(5)), "rois are ", shown(rois),
            ": expected [count, 5]");
  c.set_shape(0, {rois[0], x[1], pooled[0], pooled[1]});
}

struct Spec {
  std::string label;
  std::int64_t batch, channels, height, width, rois, out_height, out_width;
  double scale;
};

/// Rows or columns of the input that cell number `cell` covers.
struct Range {
  std::int64_t begin, end;
};

Range cell_range(double start, double extent, std::int64_t cell, std::int64_t cells, std::int64_t limit) {
  double size = extent / static_cast<double>(cells);
  auto inside = [&](double v) { return static_cast<std::int64_t>(std::clamp(v, 0.0, static_cast<double>(limit))); };
  return {inside(start + std::floor(static_cast<double>(cell) * size)),
          inside(start + std::ceil(static_cast<double>(cell + 1) * size))};
}

/// Where the largest element is, the first of several; -1 in an empty cell.
template <class T>
std::int64_t largest(const T* plane, std::int64_t width, Range rows, Range cols) {
  if (rows.begin >= rows.end || cols.begin >= cols.end) return -1;
  std::int64_t best = rows.begin * width + cols.begin;
  for (std::int64_t i = rows.begin; i < rows.end; ++i) {
    for (std::int64_t j = cols.begin; j < cols.end; ++j)
      best = plane[best] < plane[i * width + j] ? i * width + j : best;
  }
  return best;
}

/// Calls f(plane of the input, output element, position of its maximum in the plane) for all cells of one rectangle in
/// the channels [first, last).
template <class T, class F>
void for_each_cell(const Spec& s, const T* x, const T* rois, std::int64_t r, std::int64_t first, std::int64_t last,
                   const F& f) {
  const T* roi = rois + r * 5;
  if (!(roi[0] >= 0 && roi[0] < static_cast<T>(s.batch))) {
    fail(s.label, " batch index ", roi[0], " of roi ", r, ": expected [0, ", s.batch, ")");
  }
  double at[4];
  for (int i = 0; i < 4; ++i) {
    at[i] = std::round(static_cast<double>(roi[1 + i]) * s.scale);
    if (!std::isfinite(at[i])) fail(s.label, " roi ", r, " holds ", roi[1 + i], ": expected finite corners");
  }
  double width = std::max(at[2] - at[0] + 1, 1.0);
  double height = std::max(at[3] - at[1] + 1, 1.0);
  for (std::int64_t c = first; c < last; ++c) {
    const std::int64_t plane = (static_cast<std::int64_t>(roi[0]) * s.channels + c) * s.height * s.width;
    const std::int64_t cells = s.out_height * s.out_width;
    for (std::int64_t i = 0; i < cells; ++i) {
      f(plane, (r * s.channels + c) * cells + i,
        largest(x + plane, s.width, cell_range(at[1], height, i / s.out_width, s.out_height, s.height),
                cell_range(at[0], width, i % s.out_width, s.out_width, s.width)));
    }
  }
}

template <class T>
void pool(const Spec& s, const T* x, const T* rois, T* y) {
  parallel_for(s.rois, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      for_each_cell(s, x, rois, r, 0, s.channels, [&](std::int64_t plane, std::int64_t to, std::int64_t at) {
        y[to] = at < 0 ? T(0) : x[plane + at];
      });
    }
  });
}

/// Rectangles may overlap, channels do not.
template <class T>
void pool_backward(const Spec& s, const T* dy, const T* x, const T* rois, T* dx) {
  std::fill_n(dx, s.batch * s.channels * s.height * s.width, T(0));
  parallel_for(s.channels, grain_for(s.rois * s.height * s.width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = 0; r < s.rois; ++r) {
      for_each_cell(s, x, rois, r, begin, end, [&](std::int64_t plane, std::int64_t from, std::int64_t at) {
        if (at >= 0) dx[plane + at] += dy[from];
      });
    }
  });
}

Kernel prepare(PrepareContext& c) {
  const Dims& x = c.in(0).dims;
  const Dims& y = c.out(0).dims;
  Spec s{c.node.label(), x[0], x[1], x[2], x[3], y[0], y[2], y[3], c.node.attr_float("spatial_scale", 1)};
  Kernel kernel;
  visit_real(c.in(0).dtype, [&]<class T>() {
    kernel = [s](const KernelArgs& args) { pool<T>(s, args.in<T>(0), args.in<T>(1), args.out<T>(0)); };
  });
  return kernel;
}

/// dX from dY, X, rois.
Kernel prepare_gradient(PrepareContext& c) {
  const Dims& x = c.in(1).dims;
  const Dims& y = c.in(0).dims;
  Spec s{c.node.label(), x[0], x[1], x[2], x[3], y[0], y[2], y[3], c.node.attr_float("spatial_scale", 1)};
  Kernel kernel;
  visit_real(c.in(0).dtype, [&]<class T>() {
    kernel = [s](const KernelArgs& args) {
      pool_backward<T>(s, args.in<T>(0), args.in<T>(1), args.in<T>(2), args.out<T>(0));
    };
  });
  return kernel;
}

void fused_gradient(GradientContext& g) {
  AttributeList attributes(g.node.attributes.begin(), g.node.attributes.end());
  g.set(0, g.op("MaxRoiPoolGrad", {g.dy(), g.x(0), g.x(1)}, attributes, "backpass"));
  g.set_zero(1);  // corners are rounded
}

const Register max_roi_pool_grad{{.name = "MaxRoiPoolGrad",
                                  .domain = "backpass",
                                  .doc = "gradient of MaxRoiPool with respect to the feature map",
                                  .inputs = {3, 3},
                                  .types = types::floats,
                                  .infer = [](InferContext& c) { c.set_type(0, c.type(1)); },
                                  .prepare = prepare_gradient,
                                  .half_through_float = true}};

const Register max_roi_pool{{.name = "MaxRoiPool",
                             .since = 22,
                             .doc = "largest element in each cell of a grid over rectangles of a feature map",
                             .inputs = {2, 2},
                             .types = types::floats,
                             .infer = infer,
                             .prepare = prepare,
                             .gradient = max_roi_pool_gradient,
                             .fused_gradient = fused_gradient,
                             .half_through_float = true}};

}  // namespace
}  // namespace backpass
