// 8-bit integers around an integer product: taking zero points away before, scaling and rounding after.
#pragma once

#include <cstdint>

#include "backpass/tensor.hpp"
#include "kernels/conv.hpp"

namespace backpass {

/// out = x - zero as 32-bit numbers. x is int8 or uint8 of extents `dims`; `zero` has its element type and is read
/// through `zero_strides` (0 along axes where it stays the same), or is null.
void center(DType dtype, const void* x, const Dims& dims, const void* zero, const Dims& zero_strides,
            std::uint32_t* out);

/// y = saturate(round_half_even(sum * factor) + zero), rows x cols elements. `factor` and `zero` are given per row and
/// column by the strides.
struct Requantize {
  DType to = DType::uint8;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t factor_row = 0;
  std::int64_t factor_col = 0;

  void run(const std::int32_t* sums, const float* factor, const void* zero, void* y) const;
};

/// Y = X * W on 32-bit numbers that wrap around; zeros surround X.
void integer_convolve(const ConvGeometry& g, const std::uint32_t* x, const std::uint32_t* w, const std::int32_t* bias,
                      std::uint32_t* y);

}  // namespace backpass
