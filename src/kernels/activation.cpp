#include "kernels/activation.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <type_traits>

#include "support/simd.hpp"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation.cpp"
#include "hwy/foreach_target.h"
// clang-format off
#include "kernels/tile_math.hpp"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

HWY_INLINE V sigmoid(V x) { return math::sigmoid(D(), x); }
HWY_INLINE V tanh(V x) { return math::tanh(D(), x); }

HWY_INLINE V load(const float* p, std::size_t n) {
  const D d;
  if (n == hn::Lanes(d)) return hn::LoadU(d, p);
  HWY_ALIGN float buffer[hn::MaxLanes(d)] = {};
  for (std::size_t i = 0; i < n; ++i) buffer[i] = p[i];
  return hn::Load(d, buffer);
}

HWY_INLINE void store(V v, float* p, std::size_t n) {
  const D d;
  if (n == hn::Lanes(d)) return hn::StoreU(v, d, p);
  HWY_ALIGN float buffer[hn::MaxLanes(d)];
  hn::Store(v, d, buffer);
  for (std::size_t i = 0; i < n; ++i) p[i] = buffer[i];
}

template <class F>
HWY_INLINE void for_vectors(std::size_t count, const F& f) {
  const std::size_t lanes = hn::Lanes(D());
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) f(i, lanes);
  if (i < count) f(i, count - i);
}

void sigmoid_all(float* x, std::size_t count) {
  for_vectors(count, [&](std::size_t i, std::size_t n) { store(sigmoid(load(x + i, n)), x + i, n); });
}

void tanh_all(float* x, std::size_t count) {
  for_vectors(count, [&](std::size_t i, std::size_t n) { store(tanh(load(x + i, n)), x + i, n); });
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

HWY_EXPORT(sigmoid_all);
HWY_EXPORT(tanh_all);

template <class T, class F>
void apply(T* x, std::int64_t count, const F& f) {
  for (std::int64_t i = 0; i < count; ++i) x[i] = f(x[i]);
}

template <class T>
void sigmoid_values(T* x, std::int64_t count) {
  if constexpr (std::is_same_v<T, float>) {
    HWY_DYNAMIC_DISPATCH(sigmoid_all)(x, static_cast<std::size_t>(count));
  } else {
    apply(x, count, [](T v) { return 1 / (1 + std::exp(-v)); });
  }
}

template <class T>
void tanh_values(T* x, std::int64_t count) {
  if constexpr (std::is_same_v<T, float>) {
    HWY_DYNAMIC_DISPATCH(tanh_all)(x, static_cast<std::size_t>(count));
  } else {
    apply(x, count, [](T v) { return std::tanh(v); });
  }
}

// The rarely used functions.
template <class T>
void activate_other(const Activation& f, T* x, std::int64_t count) {
  const auto a = static_cast<T>(f.alpha);
  const auto b = static_cast<T>(f.beta);
  switch (f.kind) {
    case ActivationKind::affine:
      return apply(x, count, [=](T v) { return a * v + b; });
    case ActivationKind::leaky_relu:
      return apply(x, count, [=](T v) { return v >= 0 ? v : a * v; });
    case ActivationKind::thresholded_relu:
      return apply(x, count, [=](T v) { return v >= a ? v : T(0); });
    case ActivationKind::scaled_tanh:
      return apply(x, count, [=](T v) { return a * std::tanh(b * v); });
    case ActivationKind::hard_sigmoid:
      return apply(x, count, [=](T v) { return std::min(std::max(a * v + b, T(0)), T(1)); });
    case ActivationKind::elu:
      return apply(x, count, [=](T v) { return v >= 0 ? v : a * std::expm1(v); });
    case ActivationKind::softsign:
      return apply(x, count, [](T v) { return v / (1 + std::abs(v)); });
    default:
      return apply(x, count, [](T v) { return std::max(v, T(0)) + std::log1p(std::exp(-std::abs(v))); });
  }
}

}  // namespace

template <class T>
void activate(const Activation& f, T clip, T* x, std::int64_t count) {
  if (clip != kNoClip<T>) apply(x, count, [=](T v) { return std::min(std::max(v, -clip), clip); });
  switch (f.kind) {
    case ActivationKind::sigmoid:
      return sigmoid_values(x, count);
    case ActivationKind::tanh:
      return tanh_values(x, count);
    case ActivationKind::relu:
      return apply(x, count, [](T v) { return v < 0 ? T(0) : v; });
    default:
      return activate_other(f, x, count);
  }
}

template void activate<float>(const Activation&, float, float*, std::int64_t);
template void activate<double>(const Activation&, double, double*, std::int64_t);

}  // namespace backpass
#endif  // HWY_ONCE
