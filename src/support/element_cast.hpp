// One element from one plain type to another, as ONNX's Cast defines it, and with a defined result where ONNX leaves it
// open.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "support/half.hpp"

namespace backpass {

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

/// How elements are read: a bool as the byte 0 or 1 it is, which compilers vectorise.
template <class T>
using Stored = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;

/// double -> float, where what does not fit gets an odd last bit: a second rounding to a shorter format is then
/// correct.
inline float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  const double back = nearest;
  if (back == value || value != value || (bits & 0x7fffffffU) == 0x7f800000U) {
    const bool overflowed = (bits & 0x7fffffffU) == 0x7f800000U && value - value == 0;
    return overflowed ? std::bit_cast<float>(bits - 1) : nearest;
  }
  if ((back > value) == (value > 0)) --bits;  // towards zero
  return std::bit_cast<float>(bits | 1U);
}

inline float round_to_odd(std::uint64_t value) {
  // 53 bits are exact in double; what is shifted out leaves a mark.
  if (value >> 53 != 0) value = (value & ~std::uint64_t{0x7ff}) | ((value & 0x7ffU) != 0 ? 0x800U : 0U);
  return round_to_odd(static_cast<double>(value));
}

inline float round_to_odd(std::int64_t value) {
  const auto magnitude = value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  const float rounded = round_to_odd(magnitude);
  return value < 0 ? -rounded : rounded;
}

/// Truncates towards zero and keeps the low bits; out of range of the wider integer (32 bits, 64 for larger targets)
/// and NaN give that integer's smallest value, as x86 processors and numpy have it.
template <std::integral To, std::floating_point From>
To truncate_to_integer(From value) {
  using Wide = std::conditional_t<(sizeof(To) < 4 || std::is_same_v<To, std::int32_t>), std::int32_t, std::int64_t>;
  constexpr From limit = static_cast<From>(std::uint64_t{1} << (8 * sizeof(Wide) - 1));
  if constexpr (std::is_same_v<To, std::uint64_t>) {
    if (value >= limit && value < 2 * limit) return static_cast<To>(value);
  }
  const bool fits = value >= -limit && value < limit;
  return static_cast<To>(fits ? static_cast<Wide>(value) : std::numeric_limits<Wide>::min());
}

template <class To, class From>
To element_cast(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (kIsHalf<From>) {
    return element_cast<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From{0};
  } else if constexpr (kIsHalf<To>) {
    if constexpr (std::is_same_v<From, double>) {
      return To(round_to_odd(value));
    } else if constexpr (std::integral<From> && sizeof(From) >= 4) {
      using Wide = std::conditional_t<std::is_signed_v<From>, std::int64_t, std::uint64_t>;
      return To(round_to_odd(static_cast<Wide>(value)));
    } else {
      return To(static_cast<float>(value));
    }
  } else if constexpr (std::floating_point<From> && std::integral<To>) {
    return truncate_to_integer<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace backpass
