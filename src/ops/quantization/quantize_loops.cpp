#include "ops/quantization/quantize_loops.hpp"

#include <algorithm>
#include <type_traits>

#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/quantization/quantize_loops.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "hwy/highway.h"

#undef BACKPASS_IVDEP
#ifdef __clang__
#define BACKPASS_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define BACKPASS_IVDEP _Pragma("GCC ivdep")
#endif

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace {

// Rounds to the nearest integer, ties to even, what lies in [-2^21, 2^21]; the rest (which saturates anyway) is clamped
// to that. NaN becomes the lower end.
HWY_INLINE float round_near(float x) {
  constexpr float limit = 0x1p21F;
  constexpr float shift = 0x1.8p23F;
  x = x > -limit ? x : -limit;
  x = x < limit ? x : limit;
  return (x + shift) - shift;
}

struct Divide {
  static HWY_INLINE float call(float x, float scale, float, QuantizedRange) { return x / scale; }
};

struct Saturate {
  static HWY_INLINE float call(float x, float, float zero_point, QuantizedRange range) {
    const float y = round_near(x) + zero_point;
    const float raised = y > range.low ? y : range.low;
    return raised < range.high ? raised : range.high;
  }
};

struct Quantize {
  static HWY_INLINE float call(float x, float scale, float zero_point, QuantizedRange range) {
    return Saturate::call(x / scale, scale, zero_point, range);
  }
};

struct Dequantize {
  static HWY_INLINE float call(float x, float scale, float zero_point, QuantizedRange) {
    return (x - zero_point) * scale;
  }
};

template <class T>
HWY_INLINE T stored(float x) {
  if constexpr (std::is_same_v<T, float>) return x;
  return static_cast<T>(static_cast<std::int32_t>(x));
}

// Plain loops: the compiler makes vectors of a block of constant length, for the instruction set of this namespace.
template <class F, class From, class To>
void run(const void* from, void* to, std::int64_t n, const float* scale, const float* zero_point, std::int64_t step,
         QuantizedRange range) {
  constexpr std::int64_t block = 64;
  const auto* x = static_cast<const From*>(from);
  auto* y = static_cast<To*>(to);
  const auto one = [&](std::int64_t k, float s, float z)
                       HWY_ATTR { y[k] = stored<To>(F::call(static_cast<float>(x[k]), s, z, range)); };
  std::int64_t i = 0;
  if (step == 0) {
    const float s = *scale;
    const float z = *zero_point;
    for (; i + block <= n; i += block) {
      BACKPASS_IVDEP
      for (std::int64_t j = 0; j < block; ++j) one(i + j, s, z);
    }
    for (; i < n; ++i) one(i, s, z);
    return;
  }
  for (; i + block <= n; i += block) {
    BACKPASS_IVDEP
    for (std::int64_t j = 0; j < block; ++j) one(i + j, scale[i + j], zero_point[i + j]);
  }
  for (; i < n; ++i) one(i, scale[i], zero_point[i]);
}

// Lane by lane, so that the compiler may keep the lanes in vectors.
QuantizedRange range_here(const float* x, std::int64_t n) {
  constexpr std::int64_t lanes = 16;
  float low[lanes] = {};
  float high[lanes] = {};
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (std::int64_t j = 0; j < lanes; ++j) {
      low[j] = x[i + j] < low[j] ? x[i + j] : low[j];
      high[j] = x[i + j] > high[j] ? x[i + j] : high[j];
    }
  }
  for (; i < n; ++i) {
    low[0] = x[i] < low[0] ? x[i] : low[0];
    high[0] = x[i] > high[0] ? x[i] : high[0];
  }
  return {*std::min_element(low, low + lanes), *std::max_element(high, high + lanes)};
}

QuantizeLoops loops_here() {
  return {.divide = run<Divide, float, float>,
          .saturate = run<Saturate, float, float>,
          .dequantize = run<Dequantize, float, float>,
          .to_uint8 = run<Quantize, float, std::uint8_t>,
          .to_int8 = run<Quantize, float, std::int8_t>,
          .from_uint8 = run<Dequantize, std::uint8_t, float>,
          .from_int8 = run<Dequantize, std::int8_t, float>};
}

}  // namespace
}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
HWY_EXPORT(loops_here);
HWY_EXPORT(range_here);

QuantizeLoops quantize_loops() { return HWY_DYNAMIC_DISPATCH(loops_here)(); }

QuantizedRange range_of_block(const float* x, std::int64_t n) { return HWY_DYNAMIC_DISPATCH(range_here)(x, n); }

}  // namespace backpass
#endif
