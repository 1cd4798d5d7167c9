#include "gradient/standardize_rule.hpp"

#include <utility>

namespace backpass {
namespace {

Value* mean(GradientContext& g, Value* a, const std::vector<std::int64_t>& axes) {
  return g.op("ReduceMean", {a, g.b.ints(axes)}, {{"keepdims", std::int64_t{1}}});
}

/// How many elements share one statistic.
Value* count(GradientContext& g, const Standardized& s) {
  Value* groups = g.op("Max", {g.size_of(s.inverse), g.b.integer(1)});
  return g.cast_like(g.op("Div", {g.size_of(s.z), groups}), s.z);
}

}  // namespace

Value* widened(GradientContext& g, Value* a) {
  const DType dtype = a->type.dtype;
  return dtype == DType::float16 || dtype == DType::bfloat16 ? g.cast(a, DType::float32) : a;
}

Standardized standardize(GradientContext& g, Value* x, std::vector<std::int64_t> axes, double epsilon, bool centered) {
  Standardized s{.axes = std::move(axes), .centered = centered};
  Value* wide = widened(g, x);
  if (centered) wide = g.sub(wide, mean(g, wide, s.axes));
  Value* variance = mean(g, g.square(wide), s.axes);
  s.inverse = g.reciprocal(g.sqrt(g.add(variance, g.number(epsilon, wide))));
  s.z = g.mul(wide, s.inverse);
  return s;
}

/// dx = inverse * (dz - mean(dz) - z * mean(dz * z)); the first mean only when x was centered.
Value* standardize_gradient(GradientContext& g, const Standardized& s, Value* dz) {
  Value* along = g.mul(s.z, mean(g, g.mul(dz, s.z), s.axes));
  Value* rest = s.centered ? g.sub(dz, mean(g, dz, s.axes)) : dz;
  return g.mul(s.inverse, g.sub(rest, along));
}

Value* mean_gradient(GradientContext& g, const Standardized& s, Value* d_mean) {
  return g.div(g.cast_like(d_mean, s.z), count(g, s));
}

/// d inverse / dx = -inverse^2 * z / count
Value* inverse_gradient(GradientContext& g, const Standardized& s, Value* d_inverse) {
  Value* factor = g.div(g.mul(g.neg(g.cast_like(d_inverse, s.z)), g.square(s.inverse)), count(g, s));
  return g.mul(factor, s.z);
}

/// d variance / dx = 2 z / (inverse * count)
Value* variance_gradient(GradientContext& g, const Standardized& s, Value* d_variance) {
  Value* twice = g.mul(g.cast_like(d_variance, s.z), g.number(2, s.z));
  return g.mul(g.div(twice, g.mul(s.inverse, count(g, s))), s.z);
}

std::vector<std::int64_t> axes_but_channels(std::int64_t rank) {
  std::vector<std::int64_t> axes;
  for (std::int64_t i = 0; i < rank; ++i) {
    if (i != 1) axes.push_back(i);
  }
  return axes;
}

Value* per_channel(GradientContext& g, Value* a, std::int64_t rank) {
  std::vector<std::int64_t> behind;
  for (std::int64_t i = 2; i < rank; ++i) behind.push_back(i - 1);
  return g.unsqueeze(a, std::move(behind));
}

}  // namespace backpass
