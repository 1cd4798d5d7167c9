#include "ops/indexing/mask_bits.hpp"

#include <bit>
#include <cstddef>
#include <limits>

#include "support/simd.hpp"
#include "support/visit.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/indexing/mask_bits.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// U: unsigned, as wide as an element.
template <class U>
HWY_INLINE void bits_outside_as(U low, U span, const U* HWY_RESTRICT row, std::size_t n,
                                std::uint64_t* HWY_RESTRICT words) {
  constexpr std::size_t kBits = 64;
  const hn::CappedTag<U, kBits> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto first = hn::Set(d, low);
  const auto last = hn::Set(d, span);
  std::size_t at = 0;
  for (; at + kBits <= n; at += kBits) {
    std::uint64_t word = 0;
    for (std::size_t i = 0; i < kBits; i += lanes) {
      const auto offset = hn::Sub(hn::LoadU(d, row + at + i), first);
      std::uint64_t bits = 0;
      hn::StoreMaskBits(d, hn::Ne(hn::Min(offset, last), offset), reinterpret_cast<std::uint8_t*>(&bits));
      word |= bits << i;
    }
    *words++ = word;
  }
  if (at == n) return;
  std::uint64_t word = 0;
  for (std::size_t i = 0; at + i < n; ++i) {
    word |= std::uint64_t{static_cast<U>(row[at + i] - low) > span ? 1U : 0U} << i;
  }
  *words = word;
}

#define BACKPASS_BITS_OUTSIDE(U, name)                                                                            \
  void name(BitRange range, const void* row, std::size_t n, std::uint64_t* words) {                               \
    bits_outside_as(static_cast<U>(range.low), static_cast<U>(range.span), static_cast<const U*>(row), n, words); \
  }
BACKPASS_BITS_OUTSIDE(std::uint8_t, bits_outside_8)
BACKPASS_BITS_OUTSIDE(std::uint16_t, bits_outside_16)
BACKPASS_BITS_OUTSIDE(std::uint32_t, bits_outside_32)
BACKPASS_BITS_OUTSIDE(std::uint64_t, bits_outside_64)
#undef BACKPASS_BITS_OUTSIDE

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

HWY_EXPORT(bits_outside_8);
HWY_EXPORT(bits_outside_16);
HWY_EXPORT(bits_outside_32);
HWY_EXPORT(bits_outside_64);

std::uint64_t bits_of(DType dtype, double value) {
  switch (dtype) {
    case DType::float16:
      return Half(value).bits;
    case DType::bfloat16:
      return BFloat16(value).bits;
    case DType::float32:
      return std::bit_cast<std::uint32_t>(static_cast<float>(value));
    case DType::float64:
      return std::bit_cast<std::uint64_t>(value);
    default:
      unsupported_dtype(dtype);
  }
}

}  // namespace

BitRange hiding(DType dtype) {
  if (dtype == DType::boolean) return {0, 0};
  const std::uint64_t low = bits_of(dtype, dtype == DType::float16 ? -65504.0 : -1e30);
  return {low, minus_infinity(dtype).low - low};
}

BitRange minus_infinity(DType dtype) { return {bits_of(dtype, -std::numeric_limits<double>::infinity()), 0}; }

void bits_outside(DType dtype, BitRange range, const void* row, std::int64_t n, std::uint64_t* words) {
  const auto count = static_cast<std::size_t>(n);
  switch (bit_width(dtype)) {
    case 8:
      return HWY_DYNAMIC_DISPATCH(bits_outside_8)(range, row, count, words);
    case 16:
      return HWY_DYNAMIC_DISPATCH(bits_outside_16)(range, row, count, words);
    case 32:
      return HWY_DYNAMIC_DISPATCH(bits_outside_32)(range, row, count, words);
    default:
      return HWY_DYNAMIC_DISPATCH(bits_outside_64)(range, row, count, words);
  }
}

}  // namespace backpass
#endif  // HWY_ONCE
