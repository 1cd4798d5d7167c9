// BatchNormalizationGrad(dy, x, scale, mean, inverse) -> dx, dscale, dbias, from the statistics BatchNormInternal
// saved.
#include <array>

#include "kernels/batch_norm.hpp"
#include "ops/op.hpp"
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

/// sums[0] = sum(dy), sums[1] = sum(dy * z) over batch and area, z = (x - mean) * inverse.
template <class T>
void channel_sums(const BatchNormShape& s, const T* dy, const T* x, std::int64_t channel, double mean, double inverse,
                  double* sums) {
  sums[0] = 0;
  sums[1] = 0;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    std::int64_t at = (b * s.channels + channel) * s.area;
    double plain = 0;
    double with_x = 0;
    for (std::int64_t i = 0; i < s.area; ++i) {
      auto g = static_cast<double>(dy[at + i]);
      plain += g;
      with_x += g * (static_cast<double>(x[at + i]) - mean);
    }
    sums[0] += plain;
    sums[1] += with_x * inverse;
  }
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
    double count = static_cast<double>(s.batch * s.area);
    auto store = [&](std::size_t k, std::int64_t i, double value) {
      visit_real(dtypes[2], [&]<class U>() { a.out<U>(k)[i] = static_cast<U>(value); });
    };
    visit_real(dtypes[1], [&]<class T>() {
      parallel_for(s.channels, grain_for(s.batch * s.area * 4), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t channel = begin; channel < end; ++channel) {
          double mean = at(3, channel);
          double inverse = at(4, channel);
          double sums[2];
          channel_sums(s, a.in<T>(0), a.in<T>(1), channel, mean, inverse, sums);
          if (wants_scale) store(1, channel, sums[1]);
          if (wants_bias) store(2, channel, sums[0]);
          // dx = scale * inverse * (dy - mean(dy) - z * mean(dy * z))
          double factor = at(2, channel) * inverse;
          double slope = inverse * sums[1] / count;
          double offset = sums[0] / count - mean * slope;
          for (std::int64_t b = 0; b < s.batch; ++b) {
            std::int64_t first = (b * s.channels + channel) * s.area;
            for (std::int64_t i = first; i < first + s.area; ++i) {
              double x = static_cast<double>(a.in<T>(1)[i]);
              a.out<T>(0)[i] = static_cast<T>(factor * (static_cast<double>(a.in<T>(0)[i]) - offset - x * slope));
            }
          }
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
