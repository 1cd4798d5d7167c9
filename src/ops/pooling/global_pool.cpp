// GlobalAveragePool, GlobalMaxPool, GlobalLpPool: one number per channel of each image.
#include <algorithm>
#include <cmath>
#include <limits>

#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "ops/pooling/pool_common.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

/// y[plane] = f(elements, count) for each plane of input 0.
template <class T, class F>
Kernel plane_kernel(const TensorInfo& x, F f) {
  std::int64_t planes = x.dims[0] * x.dims[1];
  std::int64_t size = 1;
  for (std::size_t i = 2; i < x.dims.size(); ++i) size *= x.dims[i];
  return [=](const KernelArgs& args) {
    const T* from = args.in<T>(0);
    T* to = args.out<T>(0);
    parallel_for(planes, grain_for(size), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) to[i] = f(from + i * size, size);
    });
  };
}

/// Sum of f(x) in double precision; four partial sums let the additions overlap.
template <class T, class F>
double sum_of(const T* x, std::int64_t n, const F& f) {
  double part[4] = {0, 0, 0, 0};
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int j = 0; j < 4; ++j) part[j] += f(static_cast<double>(x[i + j]));
  }
  for (; i < n; ++i) part[0] += f(static_cast<double>(x[i]));
  return (part[0] + part[1]) + (part[2] + part[3]);
}

Kernel prepare_average(PrepareContext& c) {
  Kernel kernel;
  visit_real(c.in(0).dtype, [&]<class T>() {
    kernel = plane_kernel<T>(c.in(0), [](const T* x, std::int64_t n) {
      return static_cast<T>(sum_of(x, n, [](double v) { return v; }) / static_cast<double>(n));
    });
  });
  return kernel;
}

Kernel prepare_max(PrepareContext& c) {
  Kernel kernel;
  visit_real(c.in(0).dtype, [&]<class T>() {
    kernel = plane_kernel<T>(c.in(0), [](const T* x, std::int64_t n) {
      T best = -std::numeric_limits<T>::infinity();
      for (std::int64_t i = 0; i < n; ++i) best = x[i] > best || std::isnan(x[i]) ? x[i] : best;
      return best;
    });
  });
  return kernel;
}

void infer_lp(InferContext& c) {
  std::int64_t p = c.node.attr_int("p", 2);
  c.require(p >= 1, "attribute p is ", p, ": expected a positive number");
  infer_global_pool(c);
}

Kernel prepare_lp(PrepareContext& c) {
  auto p = static_cast<double>(c.node.attr_int("p", 2));
  Kernel kernel;
  visit_real(c.in(0).dtype, [&]<class T>() {
    kernel = plane_kernel<T>(c.in(0), [p](const T* x, std::int64_t n) {
      double sum = sum_of(x, n, [p](double v) { return std::pow(std::abs(v), p); });
      return static_cast<T>(std::pow(sum, 1.0 / p));
    });
  });
  return kernel;
}

/// Axes of the image.
std::vector<std::int64_t> image_axes(const GradientContext& g) {
  std::vector<std::int64_t> axes;
  for (std::int64_t i = 2; i < g.rank(g.x()); ++i) axes.push_back(i);
  return axes;
}

void average_gradient(GradientContext& g) {
  Value* shape = g.shape_of(g.x());
  Value* count = g.op("ReduceProd", {g.slice(shape, 2, g.rank(g.x()), 0)}, {{"keepdims", std::int64_t{0}}});
  g.set(0, g.expand_like(g.div(g.dy(), g.cast_like(count, g.dy())), g.x()));
}

void max_gradient(GradientContext& g) {  // shared evenly by all elements that are the largest
  Value* hits = g.cast_like(g.equal(g.x(), g.y()), g.x());
  g.set(0, g.mul(hits, g.div(g.dy(), g.sum(hits, image_axes(g), true))));
}

void lp_gradient(GradientContext& g) {  // d/dx = sign(x) (|x| / y)^(p-1)
  auto p = static_cast<double>(g.node.attr_int("p", 2));
  Value* slope = g.op("Sign", {g.x()});
  if (p != 1) {
    Value* safe = g.where(g.equal(g.y(), g.zero(g.y())), g.one(g.y()), g.y());
    slope = g.mul(slope, g.op("Pow", {g.div(g.op("Abs", {g.x()}), safe), g.number(p - 1)}));
  }
  g.set(0, g.mul(g.dy(), slope));
}

const Register average{{.name = "GlobalAveragePool",
                        .since = 22,
                        .doc = "mean of each channel",
                        .types = types::floats,
                        .infer = infer_global_pool,
                        .prepare = prepare_average,
                        .gradient = average_gradient,
                        .half_through_float = true,
                        .separate_axes = 2}};

const Register max{{.name = "GlobalMaxPool",
                    .since = 22,
                    .doc = "largest element of each channel",
                    .types = types::floats,
                    .infer = infer_global_pool,
                    .prepare = prepare_max,
                    .gradient = max_gradient,
                    .half_through_float = true,
                    .separate_axes = 2}};

const Register lp{{.name = "GlobalLpPool",
                   .since = 22,
                   .doc = "p-norm of each channel",
                   .types = types::floats,
                   .infer = infer_lp,
                   .prepare = prepare_lp,
                   .gradient = lp_gradient,
                   .half_through_float = true,
                   .separate_axes = 2}};

}  // namespace
}  // namespace backpass
