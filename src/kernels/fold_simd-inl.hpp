// What the two kinds of fold have in common, compiled once per instruction set (hence the guard that toggles).
#if defined(BACKPASS_KERNELS_FOLD_SIMD_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef BACKPASS_KERNELS_FOLD_SIMD_INL_HPP
#undef BACKPASS_KERNELS_FOLD_SIMD_INL_HPP
#else
#define BACKPASS_KERNELS_FOLD_SIMD_INL_HPP
#endif

#include <cstddef>
#include <limits>

#include "hwy/highway.h"
#include "kernels/fold.hpp"
#include "kernels/simd_math-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr bool is_sum(Fold f) {
  return f == Fold::sum || f == Fold::sum_abs || f == Fold::sum_square || f == Fold::sum_exp;
}

/// What fills lanes beyond the end, so that they change nothing.
template <Fold F, class T>
T filler(T shift = T{0}) {
  if constexpr (F == Fold::sum_square) return shift;
  if constexpr (F == Fold::sum_exp || F == Fold::maximum) return -std::numeric_limits<T>::infinity();
  if constexpr (F == Fold::minimum) return std::numeric_limits<T>::infinity();
  if constexpr (F == Fold::product) return T{1};
  return T{0};
}

template <Fold F, class D, class V>
HWY_INLINE V contribution(D d, V x, V shift) {
  if constexpr (F == Fold::sum_abs) return hn::Abs(x);
  if constexpr (F == Fold::sum_square) {
    const V deviation = hn::Sub(x, shift);
    return hn::Mul(deviation, deviation);
  }
  if constexpr (F == Fold::sum_exp) return exp_of_negative(d, hn::Sub(x, shift));
  return x;
}

/// acc[i] += lane i
template <class D, class V>
HWY_INLINE void add_to(D d, V v, double* acc) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    hn::StoreU(hn::Add(hn::LoadU(d, acc), v), d, acc);
  } else {
#if HWY_TARGET == HWY_SCALAR
    *acc += static_cast<double>(hn::GetLane(v));
#else
    const hn::Half<D> half;
    const hn::RepartitionToWide<D> wide;
    double* upper = acc + hn::Lanes(wide);
    hn::StoreU(hn::Add(hn::LoadU(wide, acc), hn::PromoteTo(wide, hn::LowerHalf(half, v))), wide, acc);
    hn::StoreU(hn::Add(hn::LoadU(wide, upper), hn::PromoteTo(wide, hn::UpperHalf(half, v))), wide, upper);
#endif
  }
}

/// A vector of running results; extrema also remember whether a NaN went by, which the hardware instructions forget.
template <Fold F, class D>
struct Accumulator {
  using V = hn::Vec<D>;
  V value;
  V nan;

  HWY_INLINE explicit Accumulator(D d) : value(hn::Set(d, start())), nan(hn::Zero(d)) {}
  static hn::TFromD<D> start() {
    using T = hn::TFromD<D>;
    return is_sum(F) ? T{0} : filler<F, T>();
  }
  HWY_INLINE void add(D d, V x) {
    if constexpr (F == Fold::maximum || F == Fold::minimum) {
      nan = hn::Or(nan, hn::VecFromMask(d, hn::IsNaN(x)));
      value = F == Fold::maximum ? hn::Max(value, x) : hn::Min(value, x);
    } else if constexpr (F == Fold::product) {
      value = hn::Mul(value, x);
    } else {
      value = hn::Add(value, x);
    }
  }
  HWY_INLINE void join(D d, const Accumulator& other) {
    nan = hn::Or(nan, other.nan);
    add(d, other.value);
  }
  /// All lanes joined.
  HWY_INLINE double total(D d) const {
    if constexpr (F == Fold::maximum || F == Fold::minimum) {
      if (!hn::AllFalse(d, hn::MaskFromVec(nan))) return std::numeric_limits<double>::quiet_NaN();
      return static_cast<double>(hn::GetLane(F == Fold::maximum ? hn::MaxOfLanes(d, value) : hn::MinOfLanes(d, value)));
    } else if constexpr (F == Fold::product) {
      double all = 1;
      HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(D())];
      hn::Store(value, d, lanes);
      for (std::size_t i = 0; i < hn::Lanes(d); ++i) all *= static_cast<double>(lanes[i]);
      return all;
    } else {
      return static_cast<double>(hn::GetLane(hn::SumOfLanes(d, value)));
    }
  }
  /// Joins lane i into acc[i] for i < n.
  HWY_INLINE void spill(D d, double* acc, std::size_t n) const {
    HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(D())];
    V all = value;
    if constexpr (F == Fold::maximum || F == Fold::minimum) all = hn::Or(value, nan);
    if (is_sum(F) && n == hn::Lanes(d)) return add_to(d, value, acc);
    hn::Store(all, d, lanes);
    for (std::size_t i = 0; i < n; ++i) acc[i] = fold_join(F, acc[i], static_cast<double>(lanes[i]));
  }
};

template <class F>
HWY_INLINE void with_fold(Fold fold, F&& f) {
  switch (fold) {
    case Fold::sum:
      return f.template operator()<Fold::sum>();
    case Fold::sum_abs:
      return f.template operator()<Fold::sum_abs>();
    case Fold::sum_square:
      return f.template operator()<Fold::sum_square>();
    case Fold::sum_exp:
      return f.template operator()<Fold::sum_exp>();
    case Fold::maximum:
      return f.template operator()<Fold::maximum>();
    case Fold::minimum:
      return f.template operator()<Fold::minimum>();
    case Fold::product:
      return f.template operator()<Fold::product>();
  }
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle guard
