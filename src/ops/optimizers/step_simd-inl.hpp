// What the loops of the optimizers share, compiled once per instruction set (hence the guard that toggles).
#if defined(BACKPASS_OPS_OPTIMIZERS_STEP_SIMD_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef BACKPASS_OPS_OPTIMIZERS_STEP_SIMD_INL_HPP
#undef BACKPASS_OPS_OPTIMIZERS_STEP_SIMD_INL_HPP
#else
#define BACKPASS_OPS_OPTIMIZERS_STEP_SIMD_INL_HPP
#endif

#include <cstddef>

#include "hwy/highway.h"
#include "kernels/simd_math-inl.hpp"
#include "ops/optimizers/optimizer.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Gradients as an optimizer sees them. What is not asked for changes no bit.
template <class T>
class GradientReader {
 public:
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;

  HWY_INLINE explicit GradientReader(const StepFactors& f)
      : scale_(hn::Set(D(), static_cast<T>(f.gradient_scale))),
        decay_(hn::Set(D(), static_cast<T>(f.gradient_decay))),
        scales_(f.gradient_scale != 1),
        decays_(f.gradient_decay != 0) {}

  HWY_INLINE V read(V g, V w) const {
    if (scales_) g = hn::Mul(g, scale_);
    if (decays_) g = hn::MulAdd(w, decay_, g);
    return g;
  }

 private:
  V scale_, decay_;
  bool scales_, decays_;
};

/// The two moments of Adam and LAMB.
template <class T>
class Moments {
 public:
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;

  HWY_INLINE explicit Moments(const StepFactors& f)
      : alpha_(hn::Set(D(), static_cast<T>(f.alpha))),
        new_alpha_(hn::Set(D(), static_cast<T>(1 - f.alpha))),
        beta_(hn::Set(D(), static_cast<T>(f.beta))),
        new_beta_(hn::Set(D(), static_cast<T>(1 - f.beta))),
        rate_(hn::Set(D(), static_cast<T>(f.rate))),
        root_scale_(hn::Set(D(), static_cast<T>(f.root_scale))),
        epsilon_(hn::Set(D(), static_cast<T>(f.epsilon))) {}

  HWY_INLINE void update(V g, V& m, V& v) const {
    m = hn::MulAdd(alpha_, m, hn::Mul(new_alpha_, g));
    v = hn::MulAdd(beta_, v, hn::Mul(hn::Mul(new_beta_, g), g));
  }

  HWY_INLINE V quotient(V m, V v) const {
    return hn::Div(hn::Mul(rate_, m), hn::MulAdd(hn::Sqrt(v), root_scale_, epsilon_));
  }

 private:
  V alpha_, new_alpha_, beta_, new_beta_, rate_, root_scale_, epsilon_;
};

/// A sum of squares in double, lane by lane.
template <class T>
class SquareSum {
 public:
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  using Wide = hn::ScalableTag<double>;

  HWY_INLINE SquareSum() : first_(hn::Zero(Wide())), second_(hn::Zero(Wide())) {}

  HWY_INLINE void add(V x) {
    if constexpr (sizeof(T) == 8) {
      first_ = hn::MulAdd(x, x, first_);
    } else {
#if HWY_TARGET == HWY_SCALAR
      const auto low = hn::PromoteTo(Wide(), x);
#else
      const hn::Half<D> half;
      const auto low = hn::PromoteTo(Wide(), hn::LowerHalf(half, x));
      const auto high = hn::PromoteTo(Wide(), hn::UpperHalf(half, x));
      second_ = hn::MulAdd(high, high, second_);
#endif
      first_ = hn::MulAdd(low, low, first_);
    }
  }
  HWY_INLINE double sum() const { return hn::GetLane(hn::SumOfLanes(Wide(), hn::Add(first_, second_))); }

 private:
  hn::Vec<Wide> first_, second_;
};

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle guard
