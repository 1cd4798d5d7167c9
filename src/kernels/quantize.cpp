#include "kernels/quantize.hpp"

#include <algorithm>
#include <cstddef>

#include "backpass/error.hpp"
#include "support/half.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kPiece = 1024;  // elements; packed elements of a piece end with a byte
constexpr std::int64_t kGrain = 16 * kPiece;

// Rounds to the nearest integer, ties to even, what lies in [-2^21, 2^21]; the rest (which saturates anyway) is clamped
// to that. NaN becomes the lower end.
inline float round_near(float x) {
  constexpr float limit = 0x1p21F;
  constexpr float shift = 0x1.8p23F;
  x = x > -limit ? x : -limit;
  x = x < limit ? x : limit;
  return (x + shift) - shift;
}

inline float saturated(float quotient, float zero_point, QuantizedRange range) {
  const float y = round_near(quotient) + zero_point;
  return std::min(std::max(y, range.low), range.high);
}

template <class H>
void round_to_storage(float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(H(x[i]));
}

void round_to(DType precision, float* x, std::int64_t n) {
  if (precision == DType::float16) round_to_storage<Half>(x, n);
  if (precision == DType::bfloat16) round_to_storage<BFloat16>(x, n);
}

// Scales and zero points (zeros when there are none) as floats, in the scratch memory.
struct Parameters {
  const float* scale;
  const float* zero_point;
};

Parameters parameters(const QuantizeSpec& spec, DType quantized, const void* scale, const void* zero_point,
                      void* scratch) {
  auto* scales = static_cast<float*>(scratch);
  float* zeros = scales + spec.scale_count;
  Conversion(spec.scale, DType::float32).serial(scale, scales, spec.scale_count);
  if (zero_point != nullptr) {
    Conversion(quantized, DType::float32).serial(zero_point, zeros, spec.scale_count);
  } else {
    std::fill_n(zeros, spec.scale_count, 0.0F);
  }
  return {scales, zeros};
}

void divide(float* x, std::int64_t n, const float* scale, std::int64_t step) {
  if (step == 0) {
    const float s = *scale;
    for (std::int64_t i = 0; i < n; ++i) x[i] /= s;
  } else {
    for (std::int64_t i = 0; i < n; ++i) x[i] /= scale[i];
  }
}

void saturate_run(float* x, std::int64_t n, const float* zero_point, std::int64_t step, QuantizedRange range) {
  if (step == 0) {
    const float z = *zero_point;
    for (std::int64_t i = 0; i < n; ++i) x[i] = saturated(x[i], z, range);
  } else {
    for (std::int64_t i = 0; i < n; ++i) x[i] = saturated(x[i], zero_point[i], range);
  }
}

// Float formats: a zero point of zero must not turn -0 into 0.
void shift_run(float* x, std::int64_t n, const float* zero_point, std::int64_t step) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float z = zero_point[i * step];
    if (z != 0) x[i] += z;
  }
}

void dequantize_run(float* x, std::int64_t n, Parameters p, std::int64_t index, std::int64_t step) {
  const float* scale = p.scale + index;
  const float* zero_point = p.zero_point + index;
  if (step == 0) {
    const float s = *scale;
    const float z = *zero_point;
    for (std::int64_t i = 0; i < n; ++i) x[i] = (x[i] - z) * s;
  } else {
    for (std::int64_t i = 0; i < n; ++i) x[i] = (x[i] - zero_point[i]) * scale[i];
  }
}

// Decodes pieces of x to floats, calls step(floats, first, count), encodes them into y.
template <class F>
void for_each_piece(const QuantizeSpec& spec, const void* x, void* y, const F& step) {
  const Conversion decode(spec.from, DType::float32);
  const Conversion encode(DType::float32, spec.to, {.saturate = spec.saturate});
  const std::int64_t in_bits = bit_width(spec.from);
  const std::int64_t out_bits = bit_width(spec.to);
  parallel_for(spec.size, kGrain, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) float values[kPiece];
    for (std::int64_t first = begin; first < end; first += kPiece) {
      const std::int64_t count = std::min(kPiece, end - first);
      decode.serial(static_cast<const std::byte*>(x) + first * in_bits / 8, values, count);
      step(values, first, count);
      encode.serial(values, static_cast<std::byte*>(y) + first * out_bits / 8, count);
    }
  });
}

}  // namespace

QuantizedRange quantized_range(DType dtype) {
  switch (dtype) {
    case DType::uint16:
      return {0, 65535};
    case DType::int16:
      return {-32768, 32767};
    case DType::uint8:
      return {0, 255};
    case DType::int8:
      return {-128, 127};
    case DType::uint4:
      return {0, 15};
    case DType::int4:
      return {-8, 7};
    case DType::uint2:
      return {0, 3};
    case DType::int2:
      return {-2, 1};
    default:
      return {};
  }
}

std::size_t quantize_scratch_bytes(const QuantizeSpec& spec) {
  return 2 * sizeof(float) * static_cast<std::size_t>(std::max<std::int64_t>(spec.scale_count, 1));
}

void quantize(const QuantizeSpec& spec, const void* x, const void* scale, const void* zero_point, void* y,
              void* scratch) {
  const Parameters p = parameters(spec, spec.to, scale, zero_point, scratch);
  const QuantizedRange range = quantized_range(spec.to);
  const bool to_integer = range.high > 0;
  round_to(spec.precision, static_cast<float*>(scratch), spec.scale_count);
  for_each_piece(spec, x, y, [&](float* values, std::int64_t first, std::int64_t count) {
    round_to(spec.precision, values, count);
    spec.layout.for_each_run(first, first + count,
                             [&](std::int64_t at, std::int64_t n, std::int64_t index, std::int64_t step) {
                               float* run = values + (at - first);
                               divide(run, n, p.scale + index, step);
                               round_to(spec.precision, run, n);
                               if (to_integer) {
                                 saturate_run(run, n, p.zero_point + index, step, range);
                               } else {
                                 shift_run(run, n, p.zero_point + index, step);
                               }
                             });
  });
}

void dequantize(const QuantizeSpec& spec, const void* x, const void* scale, const void* zero_point, void* y,
                void* scratch) {
  const Parameters p = parameters(spec, spec.from, scale, zero_point, scratch);
  for_each_piece(spec, x, y, [&](float* values, std::int64_t first, std::int64_t count) {
    spec.layout.for_each_run(first, first + count,
                             [&](std::int64_t at, std::int64_t n, std::int64_t index, std::int64_t step) {
                               dequantize_run(values + (at - first), n, p, index, step);
                             });
  });
}

void quantize_uint8(const float* x, float scale, std::uint8_t zero_point, std::uint8_t* y, std::int64_t n) {
  const auto z = static_cast<float>(zero_point);
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      y[i] = static_cast<std::uint8_t>(static_cast<int>(saturated(x[i] / scale, z, {0, 255})));
    }
  });
}

}  // namespace backpass
