// float16 and bfloat16 as storage types: they convert to and from float, arithmetic happens in float.
#pragma once

#include <bit>
#include <cstdint>

namespace backpass {

/// IEEE binary16. Conversion from float rounds to nearest even.
struct Half {
  std::uint16_t bits = 0;

  Half() = default;
  explicit Half(float value) : bits(from_float(value)) {}
  explicit Half(double value) : Half(static_cast<float>(value)) {}
  explicit Half(int value) : Half(static_cast<float>(value)) {}
  operator float() const { return to_float(bits); }  // NOLINT: implicit on purpose

  static std::uint16_t from_float(float value);
  static float to_float(std::uint16_t bits);
};

/// The upper half of a float. Conversion from float rounds to nearest even.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) : bits(from_float(value)) {}
  explicit BFloat16(double value) : BFloat16(static_cast<float>(value)) {}
  explicit BFloat16(int value) : BFloat16(static_cast<float>(value)) {}
  operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }  // NOLINT

  static std::uint16_t from_float(float value) {
    auto u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((u >> 16) | 0x40U);  // quiet NaN
    return static_cast<std::uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
  }
};

inline std::uint16_t Half::from_float(float value) {
  auto u = std::bit_cast<std::uint32_t>(value);
  std::uint32_t sign = (u >> 16) & 0x8000U;
  std::uint32_t magnitude = u & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U);
  if (magnitude >= 0x47800000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // 65536 and above
  if (magnitude < 0x38800000U) {
    // Below the smallest normal: adding 0.5 makes the float unit round the bits that a half subnormal keeps.
    float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U));
  }
  std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

inline float Half::to_float(std::uint16_t bits) {
  std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  std::uint32_t exponent = (bits >> 10) & 0x1fU;
  std::uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000U | (fraction << 13));
  if (exponent == 0) {
    float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (fraction << 13));
}

}  // namespace backpass
