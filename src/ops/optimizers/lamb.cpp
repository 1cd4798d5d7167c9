#include "ops/optimizers/lamb.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/optimizers/lamb.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "ops/optimizers/step_simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
class LambLoop {
 public:
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;

  HWY_INLINE explicit LambLoop(const StepFactors& f)
      : gradient_(f), moments_(f), decay_(hn::Set(D(), static_cast<T>(f.direction_decay))) {}

  HWY_INLINE LambSums update_moments(const StepPiece<T>& p, std::size_t n, std::vector<std::int64_t>& refused) {
    const D d;
    const std::size_t lanes = hn::Lanes(d);
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      V m = hn::LoadU(d, p.m + i), v = hn::LoadU(d, p.v + i);
      step(hn::LoadU(d, p.g + i), hn::LoadU(d, p.w + i), m, v, i, lanes, refused);
      hn::StoreU(m, d, p.m_out + i);
      hn::StoreU(v, d, p.v_out + i);
    }
    if (i < n) {
      const std::size_t rest = n - i;
      V m = load_some(d, p.m + i, rest, T{0}), v = load_some(d, p.v + i, rest, T{0});
      step(load_some(d, p.g + i, rest, T{0}), load_some(d, p.w + i, rest, T{0}), m, v, i, rest, refused);
      store_some(d, m, p.m_out + i, rest);
      store_some(d, v, p.v_out + i, rest);
    }
    return {weight_.sum(), direction_.sum()};
  }

  HWY_INLINE void apply(double ratio, const StepPiece<T>& p, std::size_t n) const {
    const D d;
    const std::size_t lanes = hn::Lanes(d);
    const V r = hn::Set(d, static_cast<T>(ratio));
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      hn::StoreU(moved(hn::LoadU(d, p.w + i), hn::LoadU(d, p.m + i), hn::LoadU(d, p.v + i), r), d, p.w_out + i);
    }
    if (i == n) return;
    const std::size_t rest = n - i;
    const V end = moved(load_some(d, p.w + i, rest, T{0}), load_some(d, p.m + i, rest, T{0}),
                        load_some(d, p.v + i, rest, T{0}), r);
    store_some(d, end, p.w_out + i, rest);
  }

 private:
  HWY_INLINE V direction(V w, V m, V v) const { return hn::MulAdd(w, decay_, moments_.quotient(m, v)); }

  HWY_INLINE V moved(V w, V m, V v, V ratio) const {
    const V to = hn::NegMulAdd(ratio, direction(w, m, v), w);
    return hn::IfThenElse(hn::IsFinite(to), to, w);
  }

  HWY_INLINE void step(V g, V w, V& m, V& v, std::size_t at, std::size_t count, std::vector<std::int64_t>& refused) {
    const D d;
    V new_m = m, new_v = v;
    moments_.update(gradient_.read(g, w), new_m, new_v);
    const V towards = direction(w, new_m, new_v);
    const auto finite = hn::IsFinite(towards);
    m = hn::IfThenElse(finite, new_m, m);
    v = hn::IfThenElse(finite, new_v, v);
    weight_.add(w);
    direction_.add(hn::IfThenElseZero(finite, towards));
    if (HWY_UNLIKELY(!hn::AllTrue(d, finite))) note(finite, at, count, refused);
  }

  static HWY_NOINLINE void note(hn::Mask<D> finite, std::size_t at, std::size_t count,
                                std::vector<std::int64_t>& refused) {
    std::array<std::uint8_t, 8 + hn::MaxLanes(D()) / 8> bits{};
    hn::StoreMaskBits(D(), finite, bits.data());
    for (std::size_t i = 0; i < count; ++i) {
      if ((bits[i / 8] >> (i % 8) & 1) == 0) refused.push_back(static_cast<std::int64_t>(at + i));
    }
  }

  GradientReader<T> gradient_;
  Moments<T> moments_;
  V decay_;
  SquareSum<T> weight_, direction_;
};

template <class T>
double squares_as(const T* x, std::size_t n) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  SquareSum<T> even, odd;
  std::size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    even.add(hn::LoadU(d, x + i));
    odd.add(hn::LoadU(d, x + i + lanes));
  }
  for (; i < n; i += lanes) {
    even.add(i + lanes <= n ? hn::LoadU(d, x + i) : load_some(d, x + i, n - i, T{0}));
  }
  return even.sum() + odd.sum();
}

using Refused = std::vector<std::int64_t>;
LambSums lamb_moments_f32(const StepFactors& f, const StepPiece<float>& p, std::size_t n, Refused& refused) {
  return LambLoop<float>(f).update_moments(p, n, refused);
}
LambSums lamb_moments_f64(const StepFactors& f, const StepPiece<double>& p, std::size_t n, Refused& refused) {
  return LambLoop<double>(f).update_moments(p, n, refused);
}
void lamb_apply_f32(const StepFactors& f, double ratio, const StepPiece<float>& p, std::size_t n) {
  LambLoop<float>(f).apply(ratio, p, n);
}
void lamb_apply_f64(const StepFactors& f, double ratio, const StepPiece<double>& p, std::size_t n) {
  LambLoop<double>(f).apply(ratio, p, n);
}
double squares_f32(const float* x, std::size_t n) { return squares_as(x, n); }
double squares_f64(const double* x, std::size_t n) { return squares_as(x, n); }

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

HWY_EXPORT(lamb_moments_f32);
HWY_EXPORT(lamb_moments_f64);
HWY_EXPORT(lamb_apply_f32);
HWY_EXPORT(lamb_apply_f64);
HWY_EXPORT(squares_f32);
HWY_EXPORT(squares_f64);

/// Weights that stay whatever the loop writes.
template <class T>
class Kept {
 public:
  Kept(const T* w, const std::vector<std::int64_t>& places) : places_(places) {
    for (const std::int64_t i : places) values_.push_back(w[i]);
  }
  void put_back(T* w) const {
    for (std::size_t k = 0; k < values_.size(); ++k) w[places_[k]] = values_[k];
  }

 private:
  const std::vector<std::int64_t>& places_;
  std::vector<T> values_;
};

}  // namespace

template <>
LambSums lamb_moments(const StepFactors& f, const StepPiece<float>& p, std::int64_t n,
                      std::vector<std::int64_t>& refused) {
  return HWY_DYNAMIC_DISPATCH(lamb_moments_f32)(f, p, static_cast<std::size_t>(n), refused);
}
template <>
LambSums lamb_moments(const StepFactors& f, const StepPiece<double>& p, std::int64_t n,
                      std::vector<std::int64_t>& refused) {
  return HWY_DYNAMIC_DISPATCH(lamb_moments_f64)(f, p, static_cast<std::size_t>(n), refused);
}

template <>
void lamb_apply(const StepFactors& f, double ratio, const StepPiece<float>& p, std::int64_t n,
                const std::vector<std::int64_t>& refused) {
  const Kept<float> kept(p.w, refused);
  HWY_DYNAMIC_DISPATCH(lamb_apply_f32)(f, ratio, p, static_cast<std::size_t>(n));
  kept.put_back(p.w_out);
}
template <>
void lamb_apply(const StepFactors& f, double ratio, const StepPiece<double>& p, std::int64_t n,
                const std::vector<std::int64_t>& refused) {
  const Kept<double> kept(p.w, refused);
  HWY_DYNAMIC_DISPATCH(lamb_apply_f64)(f, ratio, p, static_cast<std::size_t>(n));
  kept.put_back(p.w_out);
}

double lamb_ratio(const WeightSettings& settings, double rate, const LambSums& sums) {
  const double scaled_rate = rate * settings.rate_scale;
  if (sums.weight == 0 || sums.direction == 0) return scaled_rate;
  const double ratio = std::sqrt(sums.weight) / std::sqrt(sums.direction);
  return scaled_rate * std::min(settings.ratio_max, std::max(settings.ratio_min, ratio));
}

template <>
double squares_of(const float* x, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(squares_f32)(x, static_cast<std::size_t>(n));
}
template <>
double squares_of(const double* x, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(squares_f64)(x, static_cast<std::size_t>(n));
}

}  // namespace backpass
#endif  // HWY_ONCE
