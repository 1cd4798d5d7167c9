#include "ops/optimizers/optimizer.hpp"

#include <cstddef>

#include "ops/optimizers/optimizer_parts.hpp"
#include "support/parallel.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/optimizers/optimizer.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/simd_math-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
class AdamWLoop {
 public:
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;

  AdamWLoop(const AdamWFactors<T>& factors, const AdamWPiece<T>& piece) : f_(factors), p_(piece) {}

  void run(std::size_t n) const {
    const D d;
    const std::size_t lanes = hn::Lanes(d);
    std::size_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      V w = hn::LoadU(d, p_.w + i), m = hn::LoadU(d, p_.m + i), v = hn::LoadU(d, p_.v + i);
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
    const D d;
    m = hn::MulAdd(hn::Set(d, f_.alpha), m, hn::Mul(hn::Set(d, f_.new_alpha), g));
    v = hn::MulAdd(hn::Set(d, f_.beta), v, hn::Mul(hn::Mul(hn::Set(d, f_.new_beta), g), g));
    const V root = hn::MulAdd(hn::Sqrt(v), hn::Set(d, f_.root_scale), hn::Set(d, f_.epsilon));
    const V change = hn::Div(hn::Mul(hn::Set(d, f_.rate), m), root);
    w = hn::Mul(hn::MulSub(w, hn::Set(d, f_.keep_before), change), hn::Set(d, f_.keep_after));
  }

  const AdamWFactors<T>& f_;
  const AdamWPiece<T>& p_;
};

template <class T>
void sgd_as(T rate, std::size_t n, const T* w, const T* g, T* w_out) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto r = hn::Set(d, rate);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::NegMulAdd(r, hn::LoadU(d, g + i), hn::LoadU(d, w + i)), d, w_out + i);
  }
  if (i == n) return;
  const auto rest = hn::NegMulAdd(r, load_some(d, g + i, n - i, T{0}), load_some(d, w + i, n - i, T{0}));
  store_some(d, rest, w_out + i, n - i);
}

void adamw_f32(const AdamWFactors<float>& f, const AdamWPiece<float>& p, std::size_t n) {
  AdamWLoop<float>(f, p).run(n);
}
void adamw_f64(const AdamWFactors<double>& f, const AdamWPiece<double>& p, std::size_t n) {
  AdamWLoop<double>(f, p).run(n);
}
void sgd_f32(float rate, std::size_t n, const float* w, const float* g, float* w_out) { sgd_as(rate, n, w, g, w_out); }
void sgd_f64(double rate, std::size_t n, const double* w, const double* g, double* w_out) {
  sgd_as(rate, n, w, g, w_out);
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

HWY_EXPORT(adamw_f32);
HWY_EXPORT(adamw_f64);
HWY_EXPORT(sgd_f32);
HWY_EXPORT(sgd_f64);

constexpr std::int64_t kGrain = 1 << 13;

void adamw_piece(const AdamWFactors<float>& f, const AdamWPiece<float>& p, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(adamw_f32)(f, p, n);
}
void adamw_piece(const AdamWFactors<double>& f, const AdamWPiece<double>& p, std::size_t n) {
  HWY_DYNAMIC_DISPATCH(adamw_f64)(f, p, n);
}
void sgd_piece(float rate, std::size_t n, const float* w, const float* g, float* w_out) {
  HWY_DYNAMIC_DISPATCH(sgd_f32)(rate, n, w, g, w_out);
}
void sgd_piece(double rate, std::size_t n, const double* w, const double* g, double* w_out) {
  HWY_DYNAMIC_DISPATCH(sgd_f64)(rate, n, w, g, w_out);
}

}  // namespace

template <class T>
void adamw_step(const AdamW& p, std::int64_t n, const T* w, const T* g, const T* m, const T* v, T* w_out, T* m_out,
                T* v_out) {
  const AdamWFactors<T> f = adamw_factors<T>(p);
  parallel_for(n, kGrain, [&](std::int64_t i, std::int64_t end) {
    adamw_piece(f, {w + i, g + i, m + i, v + i, w_out + i, m_out + i, v_out + i}, static_cast<std::size_t>(end - i));
  });
}
template void adamw_step(const AdamW&, std::int64_t, const float*, const float*, const float*, const float*, float*,
                         float*, float*);
template void adamw_step(const AdamW&, std::int64_t, const double*, const double*, const double*, const double*,
                         double*, double*, double*);

template <class T>
void sgd_step(double rate, std::int64_t n, const T* w, const T* g, T* w_out) {
  parallel_for(n, 2 * kGrain, [&](std::int64_t i, std::int64_t end) {
    sgd_piece(static_cast<T>(rate), static_cast<std::size_t>(end - i), w + i, g + i, w_out + i);
  });
}
template void sgd_step(double, std::int64_t, const float*, const float*, float*);
template void sgd_step(double, std::int64_t, const double*, const double*, double*);

}  // namespace backpass
#endif  // HWY_ONCE
