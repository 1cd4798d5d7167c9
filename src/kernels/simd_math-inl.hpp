// Small additions to Highway, compiled once per instruction set (hence the guard that toggles).
#if defined(BACKPASS_KERNELS_SIMD_MATH_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef BACKPASS_KERNELS_SIMD_MATH_INL_HPP
#undef BACKPASS_KERNELS_SIMD_MATH_INL_HPP
#else
#define BACKPASS_KERNELS_SIMD_MATH_INL_HPP
#endif

#include <cstddef>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {

/// Highway's Exp gives 0 for NaN; models with a NaN should show it.
template <class D, class V>
HWY_INLINE V exp_keeping_nan(D d, V x) {
  namespace hn = hwy::HWY_NAMESPACE;
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, x));
}

/// The first n (fewer than a vector has) elements at p, then `filler`.
template <class D, class T>
HWY_INLINE hwy::HWY_NAMESPACE::Vec<D> load_some(D d, const T* p, std::size_t n, T filler) {
  namespace hn = hwy::HWY_NAMESPACE;
  HWY_ALIGN T buffer[hn::MaxLanes(D())];
  hn::Store(hn::Set(d, filler), d, buffer);
  for (std::size_t i = 0; i < n; ++i) buffer[i] = p[i];
  return hn::Load(d, buffer);
}

/// Writes the first n lanes.
template <class D, class V, class T>
HWY_INLINE void store_some(D d, V v, T* p, std::size_t n) {
  namespace hn = hwy::HWY_NAMESPACE;
  HWY_ALIGN T buffer[hn::MaxLanes(D())];
  hn::Store(v, d, buffer);
  for (std::size_t i = 0; i < n; ++i) p[i] = buffer[i];
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle guard
