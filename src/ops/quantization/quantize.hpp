// Linear quantization of a tensor whose scales are shared by all elements, by slices of an axis, or by blocks along it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "support/convert.hpp"

namespace backpass {

/// Which scale belongs to which element: the tensor seen as [outer, extent, inner] around the quantized axis.
struct ScaleLayout {
  enum class Kind : std::uint8_t { tensor, axis, block };
  Kind kind = Kind::tensor;
  std::int64_t extent = 1;
  std::int64_t inner = 1;
  std::int64_t block = 1;   ///< elements of the axis that share a scale (Kind::block)
  std::int64_t blocks = 1;  ///< scales along the axis (Kind::block)

  /// Calls f(first, count, scale_index, step) for runs covering elements [begin, end): scales of a run are
  /// scale_index, scale_index + step, ... (step 0: one scale for all).
  template <class F>
  void for_each_run(std::int64_t begin, std::int64_t end, const F& f) const;
};

struct QuantizeSpec {
  DType from;   ///< float32, float16, bfloat16, int32
  DType scale;  ///< the same, or float8e8m0
  DType to;
  DType precision = DType::float32;  ///< the quotient is rounded to this type: float32, float16, bfloat16
  bool has_zero_point = false;
  bool saturate = true;
  ScaleLayout layout = {};
  std::int64_t size = 0;
  std::int64_t scale_count = 1;
};

/// y = saturate(round(x / scale) + zero_point). `scratch` holds quantize_scratch_bytes(spec) bytes.
void quantize(const QuantizeSpec& spec, const void* x, const void* scale, const void* zero_point, void* y,
              void* scratch);

/// Here `from` is the quantized type, `to` the float type; y = (x - zero_point) * scale in float32.
void dequantize(const QuantizeSpec& spec, const void* x, const void* scale, const void* zero_point, void* y,
                void* scratch);

/// Room for scales and zero points as floats.
std::size_t quantize_scratch_bytes(const QuantizeSpec& spec);

/// Smallest and largest value of a quantized integer type; {0, 0} for the float formats.
struct QuantizedRange {
  float low = 0;
  float high = 0;
};
QuantizedRange quantized_range(DType);

/// Smallest and largest of the elements and 0. NaNs are passed over.
QuantizedRange range_with_zero(const float* x, std::int64_t n);

/// One scale and zero point: float32 to an unsigned byte.
void quantize_uint8(const float* x, float scale, std::uint8_t zero_point, std::uint8_t* y, std::int64_t n);

template <class F>
void ScaleLayout::for_each_run(std::int64_t begin, std::int64_t end, const F& f) const {
  if (kind == Kind::tensor) return f(begin, end - begin, std::int64_t{0}, std::int64_t{0});
  while (begin < end) {
    const std::int64_t row = begin / inner;  // outer * extent + position
    const std::int64_t column = begin % inner;
    const std::int64_t outer = row / extent;
    const std::int64_t position = row % extent;
    std::int64_t count = 0;
    std::int64_t index = 0;
    std::int64_t step = 0;
    if (kind == Kind::axis && inner == 1) {
      count = extent - position;
      index = position;
      step = 1;
    } else if (kind == Kind::axis) {
      count = inner - column;
      index = position;
    } else if (inner == 1) {
      count = std::min(extent, (position / block + 1) * block) - position;
      index = outer * blocks + position / block;
    } else {
      count = inner - column;
      index = (outer * blocks + position / block) * inner + column;
      step = 1;
    }
    count = std::min(count, end - begin);
    f(begin, count, index, step);
    begin += count;
  }
}

}  // namespace backpass
