// The float formats of 8 bits and fewer that ONNX stores: decode to float, encode from float (nearest, ties to even).
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace backpass {

/// What a format does with values that are not finite.
enum class NonFinite : std::uint8_t {
  ieee,  ///< the largest exponent holds infinities and NaNs
  fn,    ///< no infinity; only the code with all bits set is NaN
  fnuz,  ///< no infinity, no negative zero: its code is the NaN
  none,  ///< neither
};

/// Sign, exponent and mantissa in the low bits of a byte.
template <int kExponentBits, int kMantissaBits, int kBias, NonFinite kKind>
struct SmallFloat {
  static constexpr int kBits = 1 + kExponentBits + kMantissaBits;
  static constexpr unsigned kSign = 1U << (kBits - 1);
  static constexpr unsigned kInfinity = ((1U << kExponentBits) - 1) << kMantissaBits;  // ieee only
  static constexpr unsigned kMax =
      kKind == NonFinite::ieee ? kInfinity - 1 : kSign - (kKind == NonFinite::fn ? 2U : 1U);

  static constexpr std::uint8_t nan(unsigned sign) {
    switch (kKind) {
      case NonFinite::ieee:
        return static_cast<std::uint8_t>(sign | kInfinity | (1U << (kMantissaBits - 1)));
      case NonFinite::fn:
        return static_cast<std::uint8_t>(sign | (kSign - 1));
      case NonFinite::fnuz:
        return static_cast<std::uint8_t>(kSign);
      case NonFinite::none:
        return static_cast<std::uint8_t>(sign ^ kSign);  // a zero, as ml_dtypes has it
    }
    return 0;
  }

  static constexpr std::uint8_t overflow(unsigned sign, bool saturate) {
    if (saturate || kKind == NonFinite::none) return static_cast<std::uint8_t>(sign | kMax);
    return kKind == NonFinite::ieee ? static_cast<std::uint8_t>(sign | kInfinity) : nan(sign);
  }

  /// With `saturate`, what is too large (infinity too) becomes the largest finite number, else infinity or NaN.
  static constexpr std::uint8_t encode(float value, bool saturate) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const unsigned sign = (bits >> 31) << (kBits - 1);
    const std::uint32_t magnitude = bits & 0x7fffffffU;
    if (magnitude > 0x7f800000U) return nan(sign);
    if (magnitude == 0x7f800000U) return overflow(sign, saturate);
    const unsigned code = round(magnitude);
    if (code > kMax) return overflow(sign, saturate);
    if (kKind == NonFinite::fnuz && code == 0) return 0;
    return static_cast<std::uint8_t>(sign | code);
  }

  static constexpr float decode(unsigned code) {
    const bool negative = (code & kSign) != 0;
    const unsigned magnitude = code & (kSign - 1);
    const std::uint32_t sign = negative ? 0x80000000U : 0U;
    if (kKind == NonFinite::ieee && magnitude >= kInfinity) {
      return std::bit_cast<float>(sign | (magnitude == kInfinity ? 0x7f800000U : 0x7fc00000U));
    }
    if (kKind == NonFinite::fn && magnitude == kSign - 1) return std::bit_cast<float>(sign | 0x7fc00000U);
    if (kKind == NonFinite::fnuz && code == kSign) return std::bit_cast<float>(0x7fc00000U);
    const unsigned exponent = magnitude >> kMantissaBits;
    if (exponent == 0) {
      const float value = static_cast<float>(magnitude) * kSmallest;
      return negative ? -value : value;
    }
    const std::uint32_t shifted = magnitude << (23 - kMantissaBits);
    return std::bit_cast<float>(sign | (shifted + (static_cast<std::uint32_t>(127 - kBias) << 23)));
  }

 private:
  static constexpr std::uint32_t float_bits(int exponent) { return static_cast<std::uint32_t>(exponent + 127) << 23; }
  static constexpr int kSmallestExponent = 1 - kBias - kMantissaBits;
  static constexpr float kSmallest = std::bit_cast<float>(float_bits(kSmallestExponent));

  // The code of a finite magnitude, possibly beyond kMax.
  static constexpr unsigned round(std::uint32_t magnitude) {
    if (magnitude < float_bits(1 - kBias)) {
      // Below the smallest normal: adding 2^23 smallest steps makes the float unit round to whole steps.
      constexpr float shift = std::bit_cast<float>(float_bits(kSmallestExponent + 23));
      return std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + shift) -
             std::bit_cast<std::uint32_t>(shift);
    }
    constexpr int dropped = 23 - kMantissaBits;
    const std::uint32_t rounded = magnitude + ((1U << (dropped - 1)) - 1) + ((magnitude >> dropped) & 1U);
    return (rounded >> dropped) - (static_cast<std::uint32_t>(127 - kBias) << kMantissaBits);
  }
};

using Float8E4M3FN = SmallFloat<4, 3, 7, NonFinite::fn>;
using Float8E4M3FNUZ = SmallFloat<4, 3, 8, NonFinite::fnuz>;
using Float8E5M2 = SmallFloat<5, 2, 15, NonFinite::ieee>;
using Float8E5M2FNUZ = SmallFloat<5, 2, 16, NonFinite::fnuz>;
using Float6E2M3 = SmallFloat<2, 3, 1, NonFinite::none>;
using Float6E3M2 = SmallFloat<3, 2, 3, NonFinite::none>;
using Float4E2M1 = SmallFloat<2, 1, 1, NonFinite::none>;

/// Powers of two from 2^-127 to 2^127, and NaN (0xff): the scales of microscaling formats. No sign, no zero.
struct Float8E8M0 {
  enum class Round : std::uint8_t { up, down, nearest };

  static constexpr std::uint8_t kNaN = 0xff;
  static constexpr std::uint8_t kMax = 0xfe;

  /// What lies outside [2^-127, 2^127] becomes the end it lies beyond with `saturate`, else NaN. Negative: NaN.
  static constexpr std::uint8_t encode(float value, bool saturate, Round mode) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7fffffffU;
    if (magnitude > 0x7f800000U || (bits != magnitude && magnitude != 0)) return kNaN;
    if (magnitude == 0x7f800000U) return saturate ? kMax : kNaN;
    const std::uint32_t fraction = magnitude & 0x7fffffU;
    std::uint32_t code = magnitude >> 23;
    if (code == 0) return encode_subnormal(fraction, saturate, mode);
    if (mode == Round::up ? fraction != 0 : mode == Round::nearest && fraction >= 0x400000U) ++code;
    if (code > kMax) return saturate ? kMax : kNaN;
    return static_cast<std::uint8_t>(code);
  }

  static constexpr float decode(std::uint8_t code) {
    if (code == kNaN) return std::bit_cast<float>(0x7fc00000U);
    return std::bit_cast<float>(code == 0 ? 0x400000U : static_cast<std::uint32_t>(code) << 23);
  }

 private:
  // Float subnormals: 2^-127 is 0x400000, so what is below it underflows, and what is above rounds to 2^-127 or 2^-126.
  static constexpr std::uint8_t encode_subnormal(std::uint32_t fraction, bool saturate, Round mode) {
    const bool below = fraction < (mode == Round::up ? 1U : 0x400000U);
    if (below) return saturate ? std::uint8_t{0} : kNaN;
    const bool next = mode == Round::up ? fraction > 0x400000U : mode == Round::nearest && fraction >= 0x600000U;
    return next ? 1 : 0;
  }
};

/// decode() of every code, for loops.
template <class Format>
inline constexpr std::array<float, 256> kDecoded = [] {
  std::array<float, 256> table{};
  for (unsigned code = 0; code < 256; ++code) table[code] = Format::decode(static_cast<std::uint8_t>(code));
  return table;
}();

}  // namespace backpass
