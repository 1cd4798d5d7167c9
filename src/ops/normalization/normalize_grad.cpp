#include "ops/normalization/normalize_grad.hpp"

#include <algorithm>
#include <cstddef>

#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/normalization/normalize_grad.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/simd_math-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kBlock = 1024;  // terms added in the element type before going to double

template <RowNormForm F, class V>
HWY_INLINE V normalized(V x, V mean, V inverse, V scale, V bias) {
  if constexpr (F == RowNormForm::invertible) return hn::Div(hn::Sub(x, bias), scale);
  if constexpr (F == RowNormForm::simplified) return hn::Mul(x, inverse);
  return hn::Mul(hn::Sub(x, mean), inverse);
}

/// The elements of neighbouring rows, with a mean and a factor for each row.
template <class T>
struct Rows {
  const T* dy;
  const T* x;
  T* dx;
  const T* mean;  ///< null: 0
  const T* inverse;
};

/// R rows, which the sums of columns take together. They are first read one after the other, in the order of memory:
/// several at once are several streams, which a processor fetches at half the rate.
template <RowNormForm F, std::size_t R, class T>
class RowGroup {
 public:
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;

  HWY_INLINE RowGroup(const RowNormGrad<T>& p, const Rows<T>& rows)
      : dy_(rows.dy), x_(rows.x), dx_(rows.dx), n_(static_cast<std::size_t>(p.n)), scale_(p.scale), bias_(p.bias) {
#pragma GCC unroll 4
    for (std::size_t r = 0; r < R; ++r) {
      mean_[r] = hn::Set(D(), rows.mean == nullptr ? T{0} : rows.mean[r]);
      inverse_[r] = hn::Set(D(), rows.inverse[r]);
    }
  }

  HWY_INLINE void run(T* HWY_RESTRICT dscale, T* HWY_RESTRICT dbias) const {
    V mean_g[R], mean_gz[R];
#pragma GCC unroll 4
    for (std::size_t r = 0; r < R; ++r) {
      double g_sum = 0, gz_sum = 0;
      add_row(r, g_sum, gz_sum);
      mean_g[r] = hn::Set(D(), static_cast<T>(g_sum / static_cast<double>(n_)));
      mean_gz[r] = hn::Set(D(), static_cast<T>(gz_sum / static_cast<double>(n_)));
    }
    const std::size_t lanes = hn::Lanes(D());
    std::size_t i = 0;
    for (; i + lanes <= n_; i += lanes) finish<false>(i, lanes, mean_g, mean_gz, dscale, dbias);
    if (i < n_) finish<true>(i, n_ - i, mean_g, mean_gz, dscale, dbias);
  }

 private:
  template <bool kPart>
  static HWY_INLINE V load(const T* from, std::size_t count, T filler) {
    if constexpr (kPart) return load_some(D(), from, count, filler);
    return hn::LoadU(D(), from);
  }
  template <bool kPart>
  static HWY_INLINE void store(V v, T* to, std::size_t count) {
    if constexpr (kPart) {
      store_some(D(), v, to, count);
    } else {
      hn::StoreU(v, D(), to);
    }
  }
  /// The parameters of a column are of no use in some forms.
  template <bool kPart>
  HWY_INLINE V bias_at(std::size_t i, std::size_t count) const {
    if constexpr (F == RowNormForm::invertible) return load<kPart>(bias_ + i, count, T{0});
    return hn::Zero(D());
  }

  /// What fills a row's end has to be the mean, or it would count.
  template <bool kPart>
  HWY_INLINE V x_at(std::size_t r, std::size_t i, std::size_t count) const {
    return load<kPart>(x_ + r * n_ + i, count, kPart ? hn::GetLane(mean_[r]) : T{0});
  }

  template <bool kPart>
  HWY_INLINE void add(std::size_t r, std::size_t i, std::size_t count, V& g_sum, V& gz_sum) const {
    const V scale = load<kPart>(scale_ + i, count, T{1});
    __builtin_prefetch(dx_ + r * n_ + i, 1);
    const V g = hn::Mul(load<kPart>(dy_ + r * n_ + i, count, T{0}), scale);
    const V z = normalized<F>(x_at<kPart>(r, i, count), mean_[r], inverse_[r], scale, bias_at<kPart>(i, count));
    if constexpr (F != RowNormForm::simplified) g_sum = hn::Add(g_sum, g);
    gz_sum = hn::MulAdd(g, z, gz_sum);
  }

  HWY_INLINE void add_row(std::size_t r, double& g_total, double& gz_total) const {
    const D d;
    const std::size_t lanes = hn::Lanes(d);
    for (std::size_t i = 0; i < n_;) {
      const std::size_t end = std::min(n_, i + kBlock);
      V g_sum = hn::Zero(d), gz_sum = hn::Zero(d);
      for (; i + lanes <= end; i += lanes) add<false>(r, i, lanes, g_sum, gz_sum);
      if (i < end) add<true>(r, i, end - i, g_sum, gz_sum);
      i = end;
      g_total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, g_sum)));
      gz_total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, gz_sum)));
    }
  }

  template <bool kPart>
  HWY_INLINE void finish(std::size_t i, std::size_t count, const V* mean_g, const V* mean_gz, T* HWY_RESTRICT dscale,
                         T* HWY_RESTRICT dbias) const {
    const V scale = load<kPart>(scale_ + i, count, T{1});
    const V bias = bias_at<kPart>(i, count);
    V scale_sum = load<kPart>(dscale + i, count, T{0});
    V bias_sum = load<kPart>(dbias + i, count, T{0});
#pragma GCC unroll 4
    for (std::size_t r = 0; r < R; ++r) {
      const std::size_t at = r * n_ + i;
      const V dy = load<kPart>(dy_ + at, count, T{0});
      const V z = normalized<F>(x_at<kPart>(r, i, count), mean_[r], inverse_[r], scale, bias);
      const V dx = hn::NegMulAdd(z, mean_gz[r], hn::MulSub(dy, scale, mean_g[r]));
      scale_sum = hn::MulAdd(dy, z, scale_sum);
      bias_sum = hn::Add(bias_sum, dy);
      store<kPart>(hn::Mul(dx, inverse_[r]), dx_ + at, count);
    }
    store<kPart>(scale_sum, dscale + i, count);
    store<kPart>(bias_sum, dbias + i, count);
  }

  const T* dy_;
  const T* x_;
  T* dx_;
  std::size_t n_;
  const T* scale_;
  const T* bias_;
  V mean_[R];
  V inverse_[R];
};

template <RowNormForm F, class T>
void row_norm_grad_form(const RowNormGrad<T>& p, std::int64_t rows, const T* dy, const T* x, const T* mean,
                        const T* inverse, T* dx, T* dscale, T* dbias) {
  constexpr std::int64_t kTogether = 4;
  for (std::int64_t r = 0; r < rows;) {
    const std::int64_t at = r * p.n;
    const Rows<T> group{dy + at, x + at, dx + at, mean == nullptr ? nullptr : mean + r, inverse + r};
    if (r + kTogether <= rows) {
      RowGroup<F, kTogether, T>(p, group).run(dscale, dbias);
      r += kTogether;
    } else {
      RowGroup<F, 1, T>(p, group).run(dscale, dbias);
      ++r;
    }
  }
}

template <class T>
void row_norm_grad_as(const RowNormGrad<T>& p, std::int64_t rows, const T* dy, const T* x, const T* mean,
                      const T* inverse, T* dx, T* dscale, T* dbias) {
  std::fill_n(dscale, p.n, T{0});
  std::fill_n(dbias, p.n, T{0});
  auto run = p.form == RowNormForm::centered     ? row_norm_grad_form<RowNormForm::centered, T>
             : p.form == RowNormForm::simplified ? row_norm_grad_form<RowNormForm::simplified, T>
                                                 : row_norm_grad_form<RowNormForm::invertible, T>;
  run(p, rows, dy, x, mean, inverse, dx, dscale, dbias);
}

template <class T>
GradientSums gradient_sums_as(const T* HWY_RESTRICT dy, const T* HWY_RESTRICT x, std::size_t n, T center) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto shift = hn::Set(d, center);
  GradientSums total;
  for (std::size_t i = 0; i < n;) {
    const std::size_t end = std::min(n, i + kBlock);
    auto plain0 = hn::Zero(d), plain1 = hn::Zero(d), with0 = hn::Zero(d), with1 = hn::Zero(d);
    auto add = [&](auto& plain, auto& with, auto g, auto v) HWY_ATTR {
      plain = hn::Add(plain, g);
      with = hn::MulAdd(g, hn::Sub(v, shift), with);
    };
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      add(plain0, with0, hn::LoadU(d, dy + i), hn::LoadU(d, x + i));
      add(plain1, with1, hn::LoadU(d, dy + i + lanes), hn::LoadU(d, x + i + lanes));
    }
    for (; i + lanes <= end; i += lanes) add(plain0, with0, hn::LoadU(d, dy + i), hn::LoadU(d, x + i));
    if (i < end) add(plain1, with1, load_some(d, dy + i, end - i, T{0}), load_some(d, x + i, end - i, center));
    i = end;
    total.plain += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(plain0, plain1))));
    total.with_x += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(with0, with1))));
  }
  return total;
}

template <class T>
void gradient_run_as(const T* dy, const T* x, T* dx, std::size_t n, T center, T factor, T slope, T offset) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto c = hn::Set(d, center), f = hn::Set(d, factor), s = hn::Set(d, slope), o = hn::Set(d, offset);
  auto value = [&](auto g, auto v) HWY_ATTR { return hn::NegMulAdd(hn::Sub(v, c), s, hn::MulSub(g, f, o)); };
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(value(hn::LoadU(d, dy + i), hn::LoadU(d, x + i)), d, dx + i);
  if (i == n) return;
  store_some(d, value(load_some(d, dy + i, n - i, T{0}), load_some(d, x + i, n - i, T{0})), dx + i, n - i);
}

void row_norm_grad_f32(const RowNormGrad<float>& p, std::int64_t rows, const float* dy, const float* x,
                       const float* mean, const float* inverse, float* dx, float* dscale, float* dbias) {
  row_norm_grad_as(p, rows, dy, x, mean, inverse, dx, dscale, dbias);
}
void row_norm_grad_f64(const RowNormGrad<double>& p, std::int64_t rows, const double* dy, const double* x,
                       const double* mean, const double* inverse, double* dx, double* dscale, double* dbias) {
  row_norm_grad_as(p, rows, dy, x, mean, inverse, dx, dscale, dbias);
}
GradientSums gradient_sums_f32(const float* dy, const float* x, std::int64_t n, float center) {
  return gradient_sums_as(dy, x, static_cast<std::size_t>(n), center);
}
GradientSums gradient_sums_f64(const double* dy, const double* x, std::int64_t n, double center) {
  return gradient_sums_as(dy, x, static_cast<std::size_t>(n), center);
}
void gradient_run_f32(const float* dy, const float* x, float* dx, std::int64_t n, float center, float factor,
                      float slope, float offset) {
  gradient_run_as(dy, x, dx, static_cast<std::size_t>(n), center, factor, slope, offset);
}
void gradient_run_f64(const double* dy, const double* x, double* dx, std::int64_t n, double center, double factor,
                      double slope, double offset) {
  gradient_run_as(dy, x, dx, static_cast<std::size_t>(n), center, factor, slope, offset);
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {

HWY_EXPORT(row_norm_grad_f32);
HWY_EXPORT(row_norm_grad_f64);
HWY_EXPORT(gradient_sums_f32);
HWY_EXPORT(gradient_sums_f64);
HWY_EXPORT(gradient_run_f32);
HWY_EXPORT(gradient_run_f64);

void row_norm_grad(const RowNormGrad<float>& p, std::int64_t rows, const float* dy, const float* x, const float* mean,
                   const float* inverse, float* dx, float* dscale, float* dbias) {
  HWY_DYNAMIC_DISPATCH(row_norm_grad_f32)(p, rows, dy, x, mean, inverse, dx, dscale, dbias);
}
void row_norm_grad(const RowNormGrad<double>& p, std::int64_t rows, const double* dy, const double* x,
                   const double* mean, const double* inverse, double* dx, double* dscale, double* dbias) {
  HWY_DYNAMIC_DISPATCH(row_norm_grad_f64)(p, rows, dy, x, mean, inverse, dx, dscale, dbias);
}
GradientSums gradient_sums(const float* dy, const float* x, std::int64_t n, float center) {
  return HWY_DYNAMIC_DISPATCH(gradient_sums_f32)(dy, x, n, center);
}
GradientSums gradient_sums(const double* dy, const double* x, std::int64_t n, double center) {
  return HWY_DYNAMIC_DISPATCH(gradient_sums_f64)(dy, x, n, center);
}
void gradient_run(const float* dy, const float* x, float* dx, std::int64_t n, float center, float factor, float slope,
                  float offset) {
  HWY_DYNAMIC_DISPATCH(gradient_run_f32)(dy, x, dx, n, center, factor, slope, offset);
}
void gradient_run(const double* dy, const double* x, double* dx, std::int64_t n, double center, double factor,
                  double slope, double offset) {
  HWY_DYNAMIC_DISPATCH(gradient_run_f64)(dy, x, dx, n, center, factor, slope, offset);
}

}  // namespace backpass
#endif  // HWY_ONCE
