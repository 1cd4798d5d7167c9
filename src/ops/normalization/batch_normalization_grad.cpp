// BatchNormalizationGrad(dy, x, scale, mean, inverse) -> dx, dscale, dbias, from the statistics BatchNormInternal
// saved.
#include <array>

#include "graph/op.hpp"
#include "ops/normalization/batch_norm.hpp"
#include "ops/normalization/normalize_grad.hpp"
#include "ops/shape_rules.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.set_dtype(0, c.dtype(1));
  for (std::size_t k = 1; k <= 2; ++k) c.set_dtype(k, c.dtype(2));
  c.set_shape(0, c.shape(1));
  c.require(c.rank(1) >= 2, "x: got rank ", c.rank(1), ", expected [batch, channels, ...]");
  for (std::size_t k = 1; k <= 2; ++k) c.set_shape(k, {c.shape(1)[1]});
}

constexpr std::int64_t kShortRun = 8;  // elements below which a call costs more than its loop

template <class T>
GradientSums run_sums(const T* dy, const T* x, std::int64_t n, T center) {
  if (n >= kShortRun) return gradient_sums(dy, x, n, center);
  GradientSums sums;
  for (std::int64_t i = 0; i < n; ++i) {
    sums.plain += static_cast<double>(dy[i]);
    sums.with_x += static_cast<double>(dy[i]) * static_cast<double>(x[i] - center);
  }
  return sums;
}

/// Of one channel, over batch and area; `center` is the mean in the element type.
template <class T>
GradientSums channel_sums(const BatchNormShape& s, const T* dy, const T* x, std::int64_t channel, T center) {
  GradientSums total;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    const std::int64_t at = (b * s.channels + channel) * s.area;
    const GradientSums sums = run_sums(dy + at, x + at, s.area, center);
    total.plain += sums.plain;
    total.with_x += sums.with_x;
  }
  return total;
}

/// dx = scale * inverse * (dy - mean(dy) - z * mean(dy * z)) of one channel; returns sum(dy) and sum(dy * z).
template <class T>
GradientSums gradient_channel(const BatchNormShape& s, const T* dy, const T* x, T* dx, std::int64_t channel,
                              double scale, double mean, double inverse) {
  const auto center = static_cast<T>(mean);
  const double rest = mean - static_cast<double>(center);
  const GradientSums sums = channel_sums(s, dy, x, channel, center);
  const double with_z = (sums.with_x - rest * sums.plain) * inverse;
  const double count = static_cast<double>(s.batch * s.area);
  const double factor = scale * inverse;
  const double slope = factor * inverse * with_z / count;
  const double offset = factor * sums.plain / count - rest * slope;
  const auto f = static_cast<T>(factor), k = static_cast<T>(slope), o = static_cast<T>(offset);
  for (std::int64_t b = 0; b < s.batch; ++b) {
    const std::int64_t at = (b * s.channels + channel) * s.area;
    if (s.area >= kShortRun) {
      gradient_run(dy + at, x + at, dx + at, s.area, center, f, k, o);
    } else {
      for (std::int64_t i = at; i < at + s.area; ++i) dx[i] = f * dy[i] - o - (x[i] - center) * k;
    }
  }
  return {sums.plain, with_z};
}

Kernel prepare(PrepareContext& c) {
  const Dims& dims = c.in(1).dims;
  BatchNormShape s{dims[0], dims[1], product(dims, 2, dims.size())};
  c.require(c.in(0).dims == dims, "dy: got shape ", shown(c.in(0).dims), ", expected ", shown(dims));
  std::array<DType, 5> dtypes{};
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    dtypes[i] = c.in(i).dtype;
    c.require(i < 2 || c.in(i).size() == s.channels, "input ", i, ": expected ", s.channels,
              " values, one per channel");
  }
  bool wants_scale = c.has_output(1);
  bool wants_bias = c.has_output(2);
  return [=](const KernelArgs& a) {
    auto at = [&](std::size_t input, std::int64_t i) {
      return dtypes[input] == DType::float64 ? a.in<double>(input)[i] : static_cast<double>(a.in<float>(input)[i]);
    };
    auto store = [&](std::size_t k, std::int64_t i, double value) {
      visit_real(dtypes[2], [&]<class U>() { a.out<U>(k)[i] = static_cast<U>(value); });
    };
    visit_real(dtypes[1], [&]<class T>() {
      parallel_for(s.channels, grain_for(s.batch * s.area * 4), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t channel = begin; channel < end; ++channel) {
          const GradientSums sums = gradient_channel(s, a.in<T>(0), a.in<T>(1), a.out<T>(0), channel, at(2, channel),
                                                     at(3, channel), at(4, channel));
          if (wants_scale) store(1, channel, sums.with_x);
          if (wants_bias) store(2, channel, sums.plain);
        }
      });
    });
  };
}

const Register kOp({.name = "BatchNormalizationGrad",
                    .domain = "com.microsoft",
                    .doc = "gradient of batch normalisation in training",
                    .inputs = {5, 5},
                    .outputs = {1, 3},
                    .types = types::floats,
                    .infer = infer,
                    .prepare = prepare,
                    .half_through_float = true});

}  // namespace
}  // namespace backpass
