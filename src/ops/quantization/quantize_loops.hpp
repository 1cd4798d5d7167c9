// Inner loops of quantization for the instruction set of this machine.
#pragma once

#include <cstdint>

#include "ops/quantization/quantize.hpp"

namespace backpass {

/// y = f(x) for n elements; step 0: the first scale and zero point serve all of them, step 1: each has its own.
using QuantizeRun = void (*)(const void* x, void* y, std::int64_t n, const float* scale, const float* zero_point,
                             std::int64_t step, QuantizedRange range);

struct QuantizeLoops {
  // float to float, in place
  QuantizeRun divide;      ///< x / scale
  QuantizeRun saturate;    ///< round(x) + zero_point, kept in range
  QuantizeRun dequantize;  ///< (x - zero_point) * scale
  // what models use most, in one pass
  QuantizeRun to_uint8, to_int8, from_uint8, from_int8;
};

QuantizeLoops quantize_loops();

/// Smallest and largest of the elements and 0.
QuantizedRange range_of_block(const float* x, std::int64_t n);

}  // namespace backpass
