#include <algorithm>
#include <cstddef>

#include "kernels/fold.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/fold_columns.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/fold_simd-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {

constexpr std::size_t kRowBlock = 64;  // rows added up in the element type before going to double
constexpr std::size_t kColumnBlock = 4096;
// Longer rows go one after the other, in the order of memory: several at once are several streams, which a processor
// fetches at half the rate.
constexpr std::size_t kShortRowBytes = 1024;

/// Running results of up to kColumnBlock columns, kept in the first-level cache.
template <Fold F, class T>
struct ColumnBuffer {
  using D = hn::ScalableTag<T>;
  HWY_ALIGN T value[kColumnBlock];
  HWY_ALIGN T nan[kColumnBlock];

  HWY_INLINE void clear(D d, std::size_t width) {
    for (std::size_t c = 0; c < width; c += hn::Lanes(d)) store(d, c, Accumulator<F, D>(d));
  }
  HWY_INLINE Accumulator<F, D> load(D d, std::size_t c) const {
    Accumulator<F, D> a(d);
    a.value = hn::Load(d, value + c);
    if constexpr (F == Fold::maximum || F == Fold::minimum) a.nan = hn::Load(d, nan + c);
    return a;
  }
  HWY_INLINE void store(D d, std::size_t c, const Accumulator<F, D>& a) {
    hn::Store(a.value, d, value + c);
    if constexpr (F == Fold::maximum || F == Fold::minimum) hn::Store(a.nan, d, nan + c);
  }
};

/// Rows that go into the buffer together: of short rows several, so that it is read and written less often than they.
template <Fold F, int Rows, class T>
HWY_INLINE void fold_into(ColumnBuffer<F, T>& buffer, const T* HWY_RESTRICT x, std::size_t stride, std::size_t width,
                          const T* shift) {
  const hn::ScalableTag<T> d;
  for (std::size_t c = 0; c < width; c += hn::Lanes(d)) {
    auto a = buffer.load(d, c);
    const auto s = shift == nullptr ? hn::Zero(d) : hn::LoadU(d, shift + c);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      a.add(d, contribution<F>(d, hn::LoadU(d, x + static_cast<std::size_t>(r) * stride + c), s));
    }
    buffer.store(d, c, a);
  }
}

/// Up to kRowBlock rows of up to kColumnBlock columns, a whole number of vectors.
template <Fold F, class T>
void fold_block(const T* HWY_RESTRICT x, std::size_t stride, std::size_t rows, std::size_t width, const T* shift,
                double* acc) {
  const hn::ScalableTag<T> d;
  ColumnBuffer<F, T> buffer;
  buffer.clear(d, width);
  std::size_t r = 0;
  if (width * sizeof(T) < kShortRowBytes) {
    for (; r + 4 <= rows; r += 4) fold_into<F, 4>(buffer, x + r * stride, stride, width, shift);
  }
  for (; r < rows; ++r) fold_into<F, 1>(buffer, x + r * stride, stride, width, shift);
  for (std::size_t c = 0; c < width; c += hn::Lanes(d)) buffer.load(d, c).spill(d, acc + c, hn::Lanes(d));
}

/// Fewer columns than a vector has lanes.
template <Fold F, class T>
HWY_INLINE void fold_narrow(const T* HWY_RESTRICT x, std::size_t stride, std::size_t rows, std::size_t width,
                            const T* shift, double* acc) {
  const hn::ScalableTag<T> d;
  const auto s = shift == nullptr ? hn::Zero(d) : load_some(d, shift, width, T{0});
  Accumulator<F, decltype(d)> a(d);
  for (std::size_t r = 0; r < rows; ++r) {
    a.add(d, contribution<F>(d, load_some(d, x + r * stride, width, filler<F, T>()), s));
  }
  a.spill(d, acc, width);
}

/// A block of rows at a time, few enough to add up in the element type.
template <Fold F, class T>
void fold_columns_as(const T* HWY_RESTRICT x, std::size_t stride, std::size_t rows, std::size_t width, const T* shift,
                     double* acc) {
  const std::size_t lanes = hn::Lanes(hn::ScalableTag<T>());
  auto shift_at = [&](std::size_t i) { return shift == nullptr ? nullptr : shift + i; };
  for (std::size_t r = 0; r < rows; r += kRowBlock) {
    const T* block = x + r * stride;
    const std::size_t count = std::min(kRowBlock, rows - r);
    const std::size_t whole = width / lanes * lanes;
    for (std::size_t c = 0; c < whole; c += kColumnBlock) {
      fold_block<F>(block + c, stride, count, std::min(kColumnBlock, whole - c), shift_at(c), acc + c);
    }
    if (whole < width) fold_narrow<F>(block + whole, stride, count, width - whole, shift_at(whole), acc + whole);
  }
}

template <class T>
void fold_columns_any(Fold fold, const T* x, std::int64_t stride, std::int64_t rows, std::int64_t width, const T* shift,
                      double* acc) {
  with_fold(fold, [&]<Fold F>() {
    fold_columns_as<F>(x, static_cast<std::size_t>(stride), static_cast<std::size_t>(rows),
                       static_cast<std::size_t>(width), shift, acc);
  });
}

void fold_columns_f32(Fold fold, const float* x, std::int64_t stride, std::int64_t rows, std::int64_t width,
                      const float* shift, double* acc) {
  fold_columns_any(fold, x, stride, rows, width, shift, acc);
}
void fold_columns_f64(Fold fold, const double* x, std::int64_t stride, std::int64_t rows, std::int64_t width,
                      const double* shift, double* acc) {
  fold_columns_any(fold, x, stride, rows, width, shift, acc);
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {

HWY_EXPORT(fold_columns_f32);
HWY_EXPORT(fold_columns_f64);

void fold_columns(Fold fold, const float* x, std::int64_t stride, std::int64_t rows, std::int64_t width,
                  const float* shift, double* acc) {
  HWY_DYNAMIC_DISPATCH(fold_columns_f32)(fold, x, stride, rows, width, shift, acc);
}

void fold_columns(Fold fold, const double* x, std::int64_t stride, std::int64_t rows, std::int64_t width,
                  const double* shift, double* acc) {
  HWY_DYNAMIC_DISPATCH(fold_columns_f64)(fold, x, stride, rows, width, shift, acc);
}

}  // namespace backpass
#endif  // HWY_ONCE
