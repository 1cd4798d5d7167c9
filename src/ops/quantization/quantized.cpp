#include "ops/quantization/quantized.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/gemm.hpp"
#include "kernels/thread_buffer.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

template <class T>
void center_typed(const T* x, const Dims& dims, const T* zero, const Dims& zero_strides, std::uint32_t* out) {
  if (dims.empty()) {
    out[0] = static_cast<std::uint32_t>(std::int32_t{x[0]} - (zero != nullptr ? zero[0] : 0));
    return;
  }
  std::int64_t cols = dims.back();
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < dims.size(); ++i) rows *= dims[i];
  parallel_for(rows, grain_for(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      std::int64_t at = 0;
      std::int64_t rest = r;
      for (std::size_t axis = dims.size() - 1; zero != nullptr && axis-- > 0; rest /= dims[axis]) {
        at += rest % dims[axis] * zero_strides[axis];
      }
      for (std::int64_t j = 0; j < cols; ++j) {
        std::int32_t z = zero != nullptr ? zero[at + j * zero_strides.back()] : 0;
        out[r * cols + j] = static_cast<std::uint32_t>(std::int32_t{x[r * cols + j]} - z);
      }
    }
  });
}

template <class T>
void requantize_typed(const Requantize& q, const std::int32_t* sums, const float* factor, T zero, T* y) {
  constexpr float kLow = std::numeric_limits<T>::min();
  constexpr float kHigh = std::numeric_limits<T>::max();
  parallel_for(q.rows, grain_for(q.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      for (std::int64_t j = 0; j < q.cols; ++j) {
        float scaled = static_cast<float>(sums[i * q.cols + j]) * factor[i * q.factor_row + j * q.factor_col];
        float value = std::nearbyint(scaled) + static_cast<float>(zero);
        y[i * q.cols + j] = static_cast<T>(std::isnan(value) ? 0.0F : std::clamp(value, kLow, kHigh));
      }
    }
  });
}

}  // namespace

void center(DType dtype, const void* x, const Dims& dims, const void* zero, const Dims& zero_strides,
            std::uint32_t* out) {
  if (element_count(dims) == 0) return;
  if (dtype == DType::int8) {
    center_typed(static_cast<const std::int8_t*>(x), dims, static_cast<const std::int8_t*>(zero), zero_strides, out);
  } else {
    center_typed(static_cast<const std::uint8_t*>(x), dims, static_cast<const std::uint8_t*>(zero), zero_strides, out);
  }
}

void Requantize::run(const std::int32_t* sums, const float* factor, const void* zero, void* y) const {
  if (to == DType::int8) {
    requantize_typed(*this, sums, factor, *static_cast<const std::int8_t*>(zero), static_cast<std::int8_t*>(y));
  } else {
    requantize_typed(*this, sums, factor, *static_cast<const std::uint8_t*>(zero), static_cast<std::uint8_t*>(y));
  }
}

void integer_convolve(const ConvGeometry& g, const std::uint32_t* x, const std::uint32_t* w, const std::int32_t* bias,
                      std::uint32_t* y) {
  std::int64_t rows = g.column_rows();
  std::int64_t size = g.out_size();
  if (size == 0) return;
  for (std::int64_t i = 0; i < g.batch * g.groups; ++i) {
    auto* columns = thread_buffer<std::uint32_t, kColumns>(rows * size);
    im2col<std::uint32_t>(g, x + i * g.in_channels * g.in_size(), 0, columns);
    std::int64_t first = i % g.groups * g.out_channels;
    std::uint32_t* to = y + i * g.out_channels * size;
    integer_gemm<std::uint32_t>(false, false, g.out_channels, size, rows, w + first * rows, rows, columns, size, to,
                                size);
    for (std::int64_t c = 0; bias != nullptr && c < g.out_channels; ++c) {
      for (std::int64_t j = 0; j < size; ++j) to[c * size + j] += static_cast<std::uint32_t>(bias[first + c]);
    }
  }
}

}  // namespace backpass
