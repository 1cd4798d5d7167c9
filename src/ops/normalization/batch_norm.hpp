// Batch normalisation of a tensor seen as [batch, channels, area].
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "backpass/dtype.hpp"
#include "kernels/normalize.hpp"
#include "kernels/reduce.hpp"
#include "support/parallel.hpp"

namespace backpass {

struct BatchNormShape {
  std::int64_t batch, channels, area;
};

/// Mean and population variance of every channel.
class BatchStatistics {
 public:
  BatchStatistics(const BatchNormShape& s, DType dtype) : dtype_(dtype) {
    Dims dims{s.batch, s.channels, s.area};
    mean_ = plan_reduction(dims, {true, false, true}, Fold::sum, Finish::mean);
    variance_ = plan_reduction(dims, {true, false, true}, Fold::sum_square, Finish::mean);
  }
  std::size_t scratch_bytes() const { return mean_.scratch_bytes(); }
  template <class T>
  void run(const T* x, T* mean, T* variance, std::byte* scratch) const {
    reduce(mean_, dtype_, x, nullptr, mean, scratch);
    reduce(variance_, dtype_, x, mean, variance, scratch);
  }

 private:
  DType dtype_;
  Reduction mean_, variance_;
};

/// Turns scale, bias, mean and variance into y = x * scale + bias, in place of scale and bias.
template <class T>
void fold_batch_norm(T* scale, T* bias, const T* mean, const T* variance, std::int64_t channels, double epsilon) {
  for (std::int64_t i = 0; i < channels; ++i) {
    double factor = static_cast<double>(scale[i]) / std::sqrt(static_cast<double>(variance[i]) + epsilon);
    bias[i] = static_cast<T>(static_cast<double>(bias[i]) - static_cast<double>(mean[i]) * factor);
    scale[i] = static_cast<T>(factor);
  }
}

/// The same from inverse deviations, as they were stored.
template <class T>
void fold_batch_norm(T* scale, T* bias, const T* mean, const T* inverse, std::int64_t channels) {
  for (std::int64_t i = 0; i < channels; ++i) {
    const double factor = static_cast<double>(scale[i]) * static_cast<double>(inverse[i]);
    bias[i] = static_cast<T>(static_cast<double>(bias[i]) - static_cast<double>(mean[i]) * factor);
    scale[i] = static_cast<T>(factor);
  }
}

template <class T>
void apply_batch_norm(const BatchNormShape& s, const T* x, const T* factor, const T* offset, T* y) {
  if (s.area == 1) {
    return parallel_for(s.batch, grain_for(s.channels), [&](std::int64_t begin, std::int64_t end) {
      affine_rows(x + begin * s.channels, y + begin * s.channels, end - begin, s.channels, factor, offset);
    });
  }
  parallel_for(s.batch * s.channels, grain_for(s.area), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::int64_t channel = i % s.channels;
      affine_run(x + i * s.area, y + i * s.area, s.area, T{0}, factor[channel], offset[channel]);
    }
  });
}

}  // namespace backpass
