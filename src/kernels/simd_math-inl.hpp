// Small additions to Highway, compiled once per instruction set (hence the guard that toggles).
#if defined(BACKPASS_KERNELS_SIMD_MATH_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef BACKPASS_KERNELS_SIMD_MATH_INL_HPP
#undef BACKPASS_KERNELS_SIMD_MATH_INL_HPP
#else
#define BACKPASS_KERNELS_SIMD_MATH_INL_HPP
#endif

#include <cstddef>

#include "hwy/highway.h"
#include "kernels/tile_math.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {

/// e^x for x <= 0 or NaN: what softmax needs. In float32, results below the normal range (x < -87) are 0, which makes
/// it a third cheaper than the general function.
template <class D, class V>
HWY_INLINE V exp_of_negative(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return math::exp(d, x);
  } else {
    const hn::RebindToSigned<D> di;
    const V least = hn::Set(d, -87.0F);
    // Adding 1.5 * 2^23 leaves the nearest integer to x / ln 2 in the low bits. Max gives its second operand for NaN.
    const V magic = hn::Set(d, 12582912.0F);
    const V bounded = hn::Max(least, x);
    const V shifted = hn::MulAdd(bounded, hn::Set(d, 1.44269504F), magic);
    const V k = hn::Sub(shifted, magic);
    V r = hn::NegMulAdd(k, hn::Set(d, 0.693145752F), bounded);
    r = hn::NegMulAdd(k, hn::Set(d, 1.42860677e-6F), r);
    const V q = math::polynomial(d, r, 0.49999994, 0.166665211, 0.0416683890, 0.00836874545, 0.00138145394);
    const V p = hn::MulAdd(hn::Mul(r, r), q, hn::Add(r, hn::Set(d, 1.0F)));
    const V y = hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
    // The bits of a NaN's payload would have gone into the exponent.
    return hn::IfThenElse(hn::IsNaN(x), x, hn::IfThenZeroElse(hn::Lt(x, least), y));
  }
}

// Whether what a mask leaves out is not touched: elsewhere it may lie on a page that is not there, or take long.
#undef BACKPASS_MASKS_ARE_EXACT
#define BACKPASS_MASKS_ARE_EXACT (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL)

/// The first n (fewer than a vector has) elements at p, then `filler`.
template <class D, class T>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> load_some(D d, const T* p, std::size_t n, T filler) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (BACKPASS_MASKS_ARE_EXACT) {
    const auto mask = hn::FirstN(d, n);
    return hn::IfThenElse(mask, hn::MaskedLoad(mask, d, p), hn::Set(d, filler));
  }
  HWY_ALIGN T buffer[hn::MaxLanes(D())];
  hn::Store(hn::Set(d, filler), d, buffer);
  for (std::size_t i = 0; i < n; ++i) buffer[i] = p[i];
  return hn::Load(d, buffer);
}

/// Writes the first n lanes.
template <class D, class V, class T>
HWY_INLINE void store_some(D d, V v, T* p, std::size_t n) {
  namespace hn = hwy::HWY_NAMESPACE;
  if constexpr (BACKPASS_MASKS_ARE_EXACT) {
    hn::BlendedStore(v, hn::FirstN(d, n), d, p);
    return;
  }
  HWY_ALIGN T buffer[hn::MaxLanes(D())];
  hn::Store(v, d, buffer);
  for (std::size_t i = 0; i < n; ++i) p[i] = buffer[i];
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle guard
