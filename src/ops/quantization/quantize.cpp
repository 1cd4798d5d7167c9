#include "ops/quantization/quantize.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "ops/quantization/quantize_loops.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kPiece = 1024;  // elements; packed elements of a piece end with a byte
constexpr std::int64_t kGrain = 16 * kPiece;

// To a 16-bit precision and back.
class StorageRounding {
 public:
  explicit StorageRounding(DType precision) : is_needed_(precision != DType::float32) {
    if (!is_needed_) return;
    narrow_ = convert_loop(DType::float32, precision);
    widen_ = convert_loop(precision, DType::float32);
  }
  void operator()(float* x, std::int64_t n) const {
    if (!is_needed_) return;
    alignas(64) std::uint16_t stored[kPiece];
    for (std::int64_t begin = 0; begin < n; begin += kPiece) {
      const std::int64_t count = std::min(kPiece, n - begin);
      narrow_(x + begin, stored, count);
      widen_(stored, x + begin, count);
    }
  }

 private:
  bool is_needed_;
  ConvertLoop narrow_ = nullptr;
  ConvertLoop widen_ = nullptr;
};

// Scales and zero points (zeros when there are none) as floats, in the scratch memory.
struct Parameters {
  float* scale;
  float* zero_point;
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

// Float formats: a zero point of zero must not turn -0 into 0.
void shift_run(float* x, std::int64_t n, const float* zero_point, std::int64_t step) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float z = zero_point[i * step];
    if (z != 0) x[i] += z;
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

// Elements of whole bytes: one pass, no conversion around it.
void run_directly(const QuantizeSpec& spec, QuantizeRun loop, const void* x, void* y, Parameters p,
                  QuantizedRange range) {
  const std::int64_t in_bytes = bit_width(spec.from) / 8;
  const std::int64_t out_bytes = bit_width(spec.to) / 8;
  parallel_for(spec.size, kGrain, [&](std::int64_t begin, std::int64_t end) {
    spec.layout.for_each_run(begin, end, [&](std::int64_t at, std::int64_t n, std::int64_t index, std::int64_t step) {
      loop(static_cast<const std::byte*>(x) + at * in_bytes, static_cast<std::byte*>(y) + at * out_bytes, n,
           p.scale + index, p.zero_point + index, step, range);
    });
  });
}

QuantizeRun direct_quantize(const QuantizeLoops& loops, const QuantizeSpec& spec) {
  if (spec.from != DType::float32 || spec.precision != DType::float32) return nullptr;
  if (spec.to == DType::uint8) return loops.to_uint8;
  return spec.to == DType::int8 ? loops.to_int8 : nullptr;
}

QuantizeRun direct_dequantize(const QuantizeLoops& loops, const QuantizeSpec& spec) {
  if (spec.to != DType::float32) return nullptr;
  if (spec.from == DType::uint8) return loops.from_uint8;
  return spec.from == DType::int8 ? loops.from_int8 : nullptr;
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
  const QuantizeLoops loops = quantize_loops();
  const StorageRounding round(spec.precision);
  const Parameters p = parameters(spec, spec.to, scale, zero_point, scratch);
  round(p.scale, spec.scale_count);
  const QuantizedRange range = quantized_range(spec.to);
  if (QuantizeRun loop = direct_quantize(loops, spec)) return run_directly(spec, loop, x, y, p, range);
  for_each_piece(spec, x, y, [&](float* values, std::int64_t first, std::int64_t count) {
    round(values, count);
    const auto step_run = [&](std::int64_t at, std::int64_t n, std::int64_t index, std::int64_t step) {
      float* run = values + (at - first);
      loops.divide(run, run, n, p.scale + index, p.zero_point + index, step, range);
      round(run, n);
      if (range.high > 0) {
        loops.saturate(run, run, n, p.scale + index, p.zero_point + index, step, range);
      } else {
        shift_run(run, n, p.zero_point + index, step);
      }
    };
    spec.layout.for_each_run(first, first + count, step_run);
  });
}

void dequantize(const QuantizeSpec& spec, const void* x, const void* scale, const void* zero_point, void* y,
                void* scratch) {
  const QuantizeLoops loops = quantize_loops();
  const Parameters p = parameters(spec, spec.from, scale, zero_point, scratch);
  if (QuantizeRun loop = direct_dequantize(loops, spec)) return run_directly(spec, loop, x, y, p, {});
  for_each_piece(spec, x, y, [&](float* values, std::int64_t first, std::int64_t count) {
    const auto step_run = [&](std::int64_t at, std::int64_t n, std::int64_t index, std::int64_t step) {
      float* run = values + (at - first);
      loops.dequantize(run, run, n, p.scale + index, p.zero_point + index, step, {});
    };
    spec.layout.for_each_run(first, first + count, step_run);
  });
}

QuantizedRange range_with_zero(const float* x, std::int64_t n) {
  std::vector<QuantizedRange> parts(static_cast<std::size_t>((n + kGrain - 1) / kGrain));
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    parts[static_cast<std::size_t>(begin / kGrain)] = range_of_block(x + begin, end - begin);
  });
  QuantizedRange all;
  for (const QuantizedRange& part : parts) {
    all = {std::min(all.low, part.low), std::max(all.high, part.high)};
  }
  return all;
}

void quantize_uint8(const float* x, float scale, std::uint8_t zero_point, std::uint8_t* y, std::int64_t n) {
  const QuantizeSpec spec{.from = DType::float32, .scale = DType::float32, .to = DType::uint8, .size = n};
  float scratch[2];
  quantize(spec, x, &scale, &zero_point, y, scratch);
}

}  // namespace backpass
