// Transcendental functions of vectors, compiled once per instruction set: include after hwy/foreach_target.h.
//
// Exact to a few units in the last place over the whole range, infinities and NaN as in <cmath>. The float32
// polynomials are our own least-maximum fits; float64 builds on Highway's.

// Include guard that toggles with the instruction set.
#if defined(BACKPASS_KERNELS_TILE_MATH_HPP_) == defined(HWY_TARGET_TOGGLE)
#ifdef BACKPASS_KERNELS_TILE_MATH_HPP_
#undef BACKPASS_KERNELS_TILE_MATH_HPP_
#else
#define BACKPASS_KERNELS_TILE_MATH_HPP_
#endif

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace math {

namespace hn = hwy::HWY_NAMESPACE;

/// c0 + x (c1 + x (c2 + ...))
template <class D, class V>
HWY_INLINE V polynomial(D d, V, double c0) {
  return hn::Set(d, static_cast<hn::TFromD<D>>(c0));
}
template <class D, class V, class... C>
HWY_INLINE V polynomial(D d, V x, double c0, C... rest) {
  return hn::MulAdd(polynomial(d, x, rest...), x, hn::Set(d, static_cast<hn::TFromD<D>>(c0)));
}

/// f of each lane: for double precision that no hot path needs.
template <class D, class V, class F>
HWY_INLINE V by_lane(D d, V x, F f) {
  using T = hn::TFromD<D>;
  HWY_ALIGN T lanes[HWY_MAX_BYTES / sizeof(T)];
  hn::Store(x, d, lanes);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = f(lanes[i]);
  return hn::Load(d, lanes);
}

template <class D, class V>
HWY_INLINE V exp_f32(D d, V x) {
  const hn::RebindToSigned<D> di;
  // The second operand of Min and Max is what x86 returns for NaN.
  x = hn::Min(hn::Set(d, 89.0F), hn::Max(hn::Set(d, -104.0F), x));
  // Adding 1.5 * 2^23 leaves the nearest integer to x / ln 2 in the low bits.
  const V magic = hn::Set(d, 12582912.0F);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504F), magic);
  const V k = hn::Sub(shifted, magic);
  V r = hn::NegMulAdd(k, hn::Set(d, 0.693145752F), x);
  r = hn::NegMulAdd(k, hn::Set(d, 1.42860677e-6F), r);
  const V q = polynomial(d, r, 0.49999994, 0.166665211, 0.0416683890, 0.00836874545, 0.00138145394);
  const V p = hn::MulAdd(hn::Mul(r, r), q, hn::Add(r, hn::Set(d, 1.0F)));
  // 2^k in two halves, so that results below the normal range come out rounded rather than as 0.
  const auto whole = hn::Sub(hn::BitCast(di, shifted), hn::BitCast(di, magic));
  const auto half = hn::ShiftRight<1>(whole);
  const auto bias = hn::Set(di, 127);
  const V scale1 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const V scale2 = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(whole, half), bias)));
  return hn::Mul(hn::Mul(p, scale1), scale2);
}

template <class D, class V>
HWY_INLINE V exp(D d, V x) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    return exp_f32(d, x);
  } else {
    return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, hn::Min(x, hn::Set(d, 720.0))));
  }
}

template <class D, class V>
HWY_INLINE V log(D d, V x) {
  using T = hn::TFromD<D>;
  const V infinity = hn::Set(d, std::numeric_limits<T>::infinity());
  const V nan = hn::Set(d, std::numeric_limits<T>::quiet_NaN());
  const V edge =
      hn::IfThenElse(hn::Eq(x, infinity), infinity, hn::IfThenElse(hn::Eq(x, hn::Zero(d)), hn::Neg(infinity), nan));
  return hn::IfThenElse(hn::And(hn::Gt(x, hn::Zero(d)), hn::Lt(x, infinity)), hn::Log(d, x), edge);
}

/// log(1 + x) for x in [0, 1] or NaN.
template <class D, class V>
HWY_INLINE V log1p_of_fraction(D d, V x) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    // 2 atanh(x / (2 + x))
    const V s = hn::Div(x, hn::Add(x, hn::Set(d, 2.0F)));
    const V t = hn::Mul(s, s);
    const V p = polynomial(d, t, 0.333332062, 0.200107992, 0.140002683, 0.140093863);
    const V twice = hn::Add(s, s);
    return hn::MulAdd(hn::Mul(twice, t), p, twice);
  }
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Log1p(d, x));
}

/// e^x - 1 for x <= 0 or NaN.
template <class D, class V>
HWY_INLINE V expm1_of_negative(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Expm1(d, x));
}

template <class D, class V>
HWY_INLINE V tanh(D d, V x) {
  using T = hn::TFromD<D>;
  const V sign = hn::And(hn::SignBit(d), x);
  const V a = hn::Xor(x, sign);
  if constexpr (sizeof(T) == 4) {
    const V one = hn::Set(d, 1.0F);
    const V e = exp_f32(d, hn::Add(a, a));
    const V large = hn::Sub(one, hn::Div(hn::Set(d, 2.0F), hn::Add(e, one)));
    const V t = hn::Mul(a, a);
    const V p = polynomial(d, t, -0.333332807, 0.133314416, -0.0537397154, 0.0206390861, -0.00570498686);
    const V small = hn::MulAdd(hn::Mul(a, t), p, a);
    return hn::Or(hn::IfThenElse(hn::Lt(a, hn::Set(d, 0.625F)), small, large), sign);
  } else {
    return hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(d, hn::Or(hn::Min(a, hn::Set(d, 20.0)), sign)));
  }
}

/// 1 / (1 + e^-x)
template <class D, class V>
HWY_INLINE V sigmoid(D d, V x) {
  const V one = hn::Set(d, hn::TFromD<D>(1));
  return hn::Div(one, hn::Add(one, exp(d, hn::Neg(x))));
}

/// log(1 + e^x) without overflow.
template <class D, class V>
HWY_INLINE V softplus(D d, V x) {
  return hn::Add(hn::Max(hn::Zero(d), x), log1p_of_fraction(d, exp(d, hn::Neg(hn::Abs(x)))));
}

template <class D, class V>
HWY_INLINE V erf(D d, V x) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    const V sign = hn::And(hn::SignBit(d), x);
    const V a = hn::Min(hn::Set(d, 4.0F), hn::Xor(x, sign));
    const V small = hn::Mul(a, polynomial(d, hn::Mul(a, a), 1.12837911, -0.376123250, 0.112801798, -0.0267113112,
                                          0.00491755130, -0.000563142239));
    // erfc(a)^(1/8) is nearly straight.
    V r = polynomial(d, a, 1.00082195, -0.145010084, -0.0615077540, -0.0113052204, 0.0128943808, -0.00246219081,
                     0.000149116167);
    r = hn::Mul(r, r);
    r = hn::Mul(r, r);
    const V one = hn::Set(d, 1.0F);
    return hn::Or(hn::IfThenElse(hn::Lt(a, one), small, hn::NegMulAdd(r, r, one)), sign);
  } else {
    return by_lane(d, x, [](double v) { return std::erf(v); });
  }
}

// Highway reduces the argument of sine and cosine for |x| up to this; beyond, and for infinities, the library does.
inline constexpr double kTrigonometricRange = 30000;

template <class D, class V>
HWY_INLINE bool in_trigonometric_range(D d, V x) {
  return hn::AllTrue(d, hn::Lt(hn::Abs(x), hn::Set(d, static_cast<hn::TFromD<D>>(kTrigonometricRange))));
}

template <class D, class V>
HWY_INLINE V sin(D d, V x) {
  if (in_trigonometric_range(d, x)) return hn::Sin(d, x);
  return by_lane(d, x, [](auto v) { return std::sin(v); });
}

template <class D, class V>
HWY_INLINE V cos(D d, V x) {
  if (in_trigonometric_range(d, x)) return hn::Cos(d, x);
  return by_lane(d, x, [](auto v) { return std::cos(v); });
}

}  // namespace math
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#endif  // toggle
