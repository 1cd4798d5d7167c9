#include "ops/optimizers/optimizer.hpp"

#include <cstddef>

#include "support/parallel.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/optimizers/optimizer.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "ops/optimizers/step_simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
class AdamLoop {
 public:
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;

  HWY_INLINE AdamLoop(const StepFactors& f, const StepPiece<T>& piece)
      : p_(piece),
        gradient_(f),
        moments_(f),
        before_(hn::Set(D(), static_cast<T>(f.keep_before))),
        after_(hn::Set(D(), static_cast<T>(f.keep_after))) {}

  HWY_INLINE void run(std::size_t n) const {
    const D d;
    const std::size_t lanes = hn::Lanes(d);
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      V w = hn::LoadU(d, p_.w + i), m = hn::LoadU(d, p_.m + i), v = hn::LoadU(d, p_.v + i);
      for (const T* stream : {p_.g + i, p_.w + i, p_.m + i, p_.v + i}) __builtin_prefetch(stream + kAhead);
      step(hn::LoadU(d, p_.g + i), w, m, v);
      hn::StoreU(w, d, p_.w_out + i);
      hn::StoreU(m, d, p_.m_out + i);
      hn::StoreU(v, d, p_.v_out + i);
    }
    if (i == n) return;
    const std::size_t rest = n - i;
    V w = load_some(d, p_.w + i, rest, T{0}), m = load_some(d, p_.m + i, rest, T{0});
    V v = load_some(d, p_.v + i, rest, T{0});
    step(load_some(d, p_.g + i, rest, T{0}), w, m, v);
    store_some(d, w, p_.w_out + i, rest);
    store_some(d, m, p_.m_out + i, rest);
    store_some(d, v, p_.v_out + i, rest);
  }

 private:
  HWY_INLINE void step(V g, V& w, V& m, V& v) const {
    moments_.update(gradient_.read(g, w), m, v);
    w = hn::Mul(hn::MulSub(w, before_, moments_.quotient(m, v)), after_);
  }

  // Half a page: what processors fetch by themselves ends at each page, four times.
  static constexpr std::size_t kAhead = 2048 / sizeof(T);

  const StepPiece<T> p_;
  GradientReader<T> gradient_;
  Moments<T> moments_;
  V before_, after_;
};

template <class T>
void sgd_as(const StepFactors& f, const StepPiece<T>& p, std::size_t n) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<hn::ScalableTag<T>>;
  const std::size_t lanes = hn::Lanes(d);
  const GradientReader<T> gradient(f);
  const V rate = hn::Set(d, static_cast<T>(f.rate));
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const V w = hn::LoadU(d, p.w + i);
    hn::StoreU(hn::NegMulAdd(rate, gradient.read(hn::LoadU(d, p.g + i), w), w), d, p.w_out + i);
  }
  if (i == n) return;
  const V w = load_some(d, p.w + i, n - i, T{0});
  store_some(d, hn::NegMulAdd(rate, gradient.read(load_some(d, p.g + i, n - i, T{0}), w), w), p.w_out + i, n - i);
}

void adam_f32(const StepFactors& f, const StepPiece<float>& p, std::size_t n) { AdamLoop<float>(f, p).run(n); }
void adam_f64(const StepFactors& f, const StepPiece<double>& p, std::size_t n) { AdamLoop<double>(f, p).run(n); }
void sgd_f32(const StepFactors& f, const StepPiece<float>& p, std::size_t n) { sgd_as(f, p, n); }
void sgd_f64(const StepFactors& f, const StepPiece<double>& p, std::size_t n) { sgd_as(f, p, n); }

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

HWY_EXPORT(adam_f32);
HWY_EXPORT(adam_f64);
HWY_EXPORT(sgd_f32);
HWY_EXPORT(sgd_f64);

constexpr std::int64_t kGrain = 1 << 14;

}  // namespace

template <>
void adam_piece(const StepFactors& f, const StepPiece<float>& p, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(adam_f32)(f, p, static_cast<std::size_t>(n));
}
template <>
void adam_piece(const StepFactors& f, const StepPiece<double>& p, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(adam_f64)(f, p, static_cast<std::size_t>(n));
}
template <>
void sgd_piece(const StepFactors& f, const StepPiece<float>& p, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(sgd_f32)(f, p, static_cast<std::size_t>(n));
}
template <>
void sgd_piece(const StepFactors& f, const StepPiece<double>& p, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(sgd_f64)(f, p, static_cast<std::size_t>(n));
}

template <class T>
void adam_step(const StepFactors& f, const StepPiece<T>& p, std::int64_t n) {
  parallel_for(n, kGrain, [&](std::int64_t i, std::int64_t end) { adam_piece(f, p.from(i), end - i); });
}
template void adam_step(const StepFactors&, const StepPiece<float>&, std::int64_t);
template void adam_step(const StepFactors&, const StepPiece<double>&, std::int64_t);

template <class T>
void sgd_step(const StepFactors& f, const StepPiece<T>& p, std::int64_t n) {
  parallel_for(n, kGrain, [&](std::int64_t i, std::int64_t end) { sgd_piece(f, p.from(i), end - i); });
}
template void sgd_step(const StepFactors&, const StepPiece<float>&, std::int64_t);
template void sgd_step(const StepFactors&, const StepPiece<double>&, std::int64_t);

}  // namespace backpass
#endif  // HWY_ONCE
