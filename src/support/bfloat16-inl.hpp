// Loops between bfloat16 and float32, compiled once per instruction set (hence the guard that toggles). The compiler
// makes poor vectors of the rounding.
#if defined(BACKPASS_SUPPORT_BFLOAT16_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef BACKPASS_SUPPORT_BFLOAT16_INL_HPP
#undef BACKPASS_SUPPORT_BFLOAT16_INL_HPP
#else
#define BACKPASS_SUPPORT_BFLOAT16_INL_HPP
#endif

#include <bit>
#include <cstdint>

#include "hwy/highway.h"
#include "support/half.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {

HWY_INLINE void widen_bfloat16(const std::uint16_t* HWY_RESTRICT x, float* HWY_RESTRICT y, std::int64_t n) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> bits;
  const hn::Rebind<std::uint16_t, decltype(d)> narrow;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(bits, hn::LoadU(narrow, x + i)))), d, y + i);
  }
  for (; i < n; ++i) y[i] = std::bit_cast<float>(static_cast<std::uint32_t>(x[i]) << 16);
}

/// To nearest, ties to even; what is not a number stays so.
HWY_INLINE void narrow_bfloat16(const float* HWY_RESTRICT x, std::uint16_t* HWY_RESTRICT y, std::int64_t n) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> bits;
  const hn::RebindToSigned<decltype(d)> numbers;
  const hn::Rebind<std::uint16_t, decltype(d)> narrow;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    const auto u = hn::BitCast(bits, v);
    const auto upper = hn::ShiftRight<16>(u);
    const auto half = hn::Add(hn::Set(bits, 0x7fffU), hn::And(upper, hn::Set(bits, 1U)));
    const auto rounded = hn::ShiftRight<16>(hn::Add(u, half));
    const auto quiet = hn::Or(upper, hn::Set(bits, 0x40U));
    const auto result = hn::IfThenElse(hn::RebindMask(bits, hn::IsNaN(v)), quiet, rounded);
    hn::StoreU(hn::DemoteTo(narrow, hn::BitCast(numbers, result)), narrow, y + i);
  }
  for (; i < n; ++i) y[i] = BFloat16::from_float(x[i]);
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // BACKPASS_SUPPORT_BFLOAT16_INL_HPP
