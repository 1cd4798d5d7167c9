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

/// What one row needs beside its elements.
template <class T>
struct Row {
  const T* dy;
  const T* x;
  T* dx;
  T mean, inverse;
  double sum_g = 0, sum_gz = 0;
  T mean_g = 0, mean_gz = 0;
};

template <RowNormForm F, class V>
HWY_INLINE V normalized(V x, V mean, V inverse, V scale, V bias) {
  if constexpr (F == RowNormForm::invertible) return hn::Div(hn::Sub(x, bias), scale);
  if constexpr (F == RowNormForm::simplified) return hn::Mul(x, inverse);
  return hn::Mul(hn::Sub(x, mean), inverse);
}

/// A few rows together, so that what they share is read once.
template <RowNormForm F, std::size_t R, class T>
class RowGroup {
 public:
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;

  RowGroup(const RowNormGrad<T>& p, Row<T>* rows) : p_(p), rows_(rows), n_(static_cast<std::size_t>(p.n)) {}

  HWY_INLINE void run(T* dscale, T* dbias) {
    for (std::size_t i = 0; i < n_; i += kBlock) add_block(i, std::min(n_, i + kBlock));
    for (std::size_t r = 0; r < R; ++r) {
      Row<T>& row = rows_[r];
      row.mean_g = F == RowNormForm::simplified ? T{0} : static_cast<T>(row.sum_g / static_cast<double>(n_));
      row.mean_gz = static_cast<T>(row.sum_gz / static_cast<double>(n_));
    }
    const std::size_t lanes = hn::Lanes(D());
    std::size_t i = 0;
    for (; i + lanes <= n_; i += lanes) finish<false>(i, lanes, dscale, dbias);
    if (i < n_) finish<true>(i, n_ - i, dscale, dbias);
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
    if constexpr (F == RowNormForm::invertible) return load<kPart>(p_.bias + i, count, T{0});
    return hn::Zero(D());
  }

  template <bool kPart>
  HWY_INLINE void add(std::size_t i, std::size_t count, V* g_sum, V* gz_sum) const {
    const D d;
    const V scale = load<kPart>(p_.scale + i, count, T{1});
    const V bias = bias_at<kPart>(i, count);
    for (std::size_t r = 0; r < R; ++r) {
      const Row<T>& row = rows_[r];
      const V g = hn::Mul(load<kPart>(row.dy + i, count, T{0}), scale);
      const V z = normalized<F>(load<kPart>(row.x + i, count, row.mean), hn::Set(d, row.mean), hn::Set(d, row.inverse),
                                scale, bias);
      if constexpr (F != RowNormForm::simplified) g_sum[r] = hn::Add(g_sum[r], g);
      gz_sum[r] = hn::MulAdd(g, z, gz_sum[r]);
    }
  }

  HWY_INLINE void add_block(std::size_t i, std::size_t end) {
    const D d;
    const std::size_t lanes = hn::Lanes(d);
    V g_sum[R], gz_sum[R];
    for (std::size_t r = 0; r < R; ++r) g_sum[r] = gz_sum[r] = hn::Zero(d);
    for (; i + lanes <= end; i += lanes) add<false>(i, lanes, g_sum, gz_sum);
    if (i < end) add<true>(i, end - i, g_sum, gz_sum);
    for (std::size_t r = 0; r < R; ++r) {
      rows_[r].sum_g += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, g_sum[r])));
      rows_[r].sum_gz += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, gz_sum[r])));
    }
  }

  template <bool kPart>
  HWY_INLINE void finish(std::size_t i, std::size_t count, T* dscale, T* dbias) const {
    const D d;
    const V scale = load<kPart>(p_.scale + i, count, T{1});
    const V bias = bias_at<kPart>(i, count);
    V scale_sum = load<kPart>(dscale + i, count, T{0});
    V bias_sum = load<kPart>(dbias + i, count, T{0});
    for (std::size_t r = 0; r < R; ++r) {
      const Row<T>& row = rows_[r];
      const V inverse = hn::Set(d, row.inverse);
      const V dy = load<kPart>(row.dy + i, count, T{0});
      const V z = normalized<F>(load<kPart>(row.x + i, count, row.mean), hn::Set(d, row.mean), inverse, scale, bias);
      V dx = hn::MulSub(dy, scale, hn::Set(d, row.mean_g));
      dx = hn::Mul(hn::NegMulAdd(z, hn::Set(d, row.mean_gz), dx), inverse);
      scale_sum = hn::MulAdd(dy, z, scale_sum);
      bias_sum = hn::Add(bias_sum, dy);
      store<kPart>(dx, row.dx + i, count);
    }
    store<kPart>(scale_sum, dscale + i, count);
    store<kPart>(bias_sum, dbias + i, count);
  }

  const RowNormGrad<T>& p_;
  Row<T>* rows_;
  std::size_t n_;
};

template <RowNormForm F, class T>
void row_norm_grad_form(const RowNormGrad<T>& p, std::int64_t rows, const T* dy, const T* x, const T* mean,
                        const T* inverse, T* dx, T* dscale, T* dbias) {
  constexpr std::int64_t kTogether = 4;
  Row<T> group[kTogether];
  for (std::int64_t r = 0; r < rows;) {
    const std::int64_t count = r + kTogether <= rows ? kTogether : 1;
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t at = (r + k) * p.n;
      group[k] = {dy + at, x + at, dx + at, mean == nullptr ? T{0} : mean[r + k], inverse[r + k]};
    }
    if (count == kTogether) {
      RowGroup<F, kTogether, T>(p, group).run(dscale, dbias);
    } else {
      RowGroup<F, 1, T>(p, group).run(dscale, dbias);
    }
    r += count;
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
