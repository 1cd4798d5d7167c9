#include "kernels/class_tiles.hpp"

#include <limits>

#include "kernels/simd_fixed.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/class_tiles.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/simd_math-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::CappedTag<T, kTileColumns>;

/// Vectors of a group of columns: a whole line of the cache, or more.
template <class T>
constexpr int kVectors = static_cast<int>(kTileColumns / static_cast<std::int64_t>(hn::MaxLanes(Tag<T>())));

template <class T>
void exponentials_of_group(const ClassTile<T>& tile, std::int64_t column, const T* bias, T* shifts, T* sums) {
  const Tag<T> d;
  constexpr auto kLanes = static_cast<std::int64_t>(hn::MaxLanes(Tag<T>()));
  using V = hn::Vec<Tag<T>>;
  V shift[kVectors<T>];
  V sum[kVectors<T>];
  for (int i = 0; i < kVectors<T>; ++i) {
    shift[i] = hn::Set(d, std::numeric_limits<T>::lowest());  // finite: where all scores are -infinity, terms are 0
    sum[i] = hn::Zero(d);
  }
  for (std::int64_t j = 0; j < tile.classes; ++j) {
    const T* row = tile.data + j * tile.ld + column;
    const V add = hn::Set(d, bias == nullptr ? T{0} : bias[j]);
    for (int i = 0; i < kVectors<T>; ++i) shift[i] = hn::Max(hn::Add(hn::LoadU(d, row + i * kLanes), add), shift[i]);
  }
  for (std::int64_t j = 0; j < tile.classes; ++j) {
    T* row = tile.data + j * tile.ld + column;
    const V add = hn::Set(d, bias == nullptr ? T{0} : bias[j]);
    for (int i = 0; i < kVectors<T>; ++i) {
      const V score = hn::Add(hn::LoadU(d, row + i * kLanes), add);
      const V e = exp_of_negative(d, hn::Sub(score, shift[i]));
      hn::StoreU(e, d, row + i * kLanes);
      sum[i] = hn::Add(sum[i], e);
    }
  }
  for (int i = 0; i < kVectors<T>; ++i) {
    hn::StoreU(shift[i], d, shifts + column + i * kLanes);
    hn::StoreU(sum[i], d, sums + column + i * kLanes);
  }
}

template <class T>
void exponentials_as(const ClassTile<T>& tile, const T* bias, T* shifts, T* sums) {
  for (std::int64_t c = 0; c < tile.width; c += kTileColumns) exponentials_of_group(tile, c, bias, shifts, sums);
}

template <class T>
void scale_columns_as(const ClassTile<T>& tile, const T* factors, T* sums) {
  const Tag<T> d;
  constexpr auto kLanes = static_cast<std::int64_t>(hn::MaxLanes(Tag<T>()));
  for (std::int64_t j = 0; j < tile.classes; ++j) {
    T* row = tile.data + j * tile.ld;
    auto sum = hn::Zero(d);
    for (std::int64_t c = 0; c < tile.width; c += kLanes) {
      const auto v = hn::Mul(hn::LoadU(d, row + c), hn::LoadU(d, factors + c));
      hn::StoreU(v, d, row + c);
      sum = hn::Add(sum, v);
    }
    if (sums != nullptr) sums[j] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

void exponentials_f32(const ClassTile<float>& tile, const float* bias, float* shifts, float* sums) {
  exponentials_as(tile, bias, shifts, sums);
}
void exponentials_f64(const ClassTile<double>& tile, const double* bias, double* shifts, double* sums) {
  exponentials_as(tile, bias, shifts, sums);
}
void scale_columns_f32(const ClassTile<float>& tile, const float* factors, float* sums) {
  scale_columns_as(tile, factors, sums);
}
void scale_columns_f64(const ClassTile<double>& tile, const double* factors, double* sums) {
  scale_columns_as(tile, factors, sums);
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {

HWY_EXPORT(exponentials_f32);
HWY_EXPORT(exponentials_f64);
HWY_EXPORT(scale_columns_f32);
HWY_EXPORT(scale_columns_f64);

void exponentials(const ClassTile<float>& tile, const float* bias, float* shifts, float* sums) {
  HWY_DYNAMIC_DISPATCH(exponentials_f32)(tile, bias, shifts, sums);
}
void exponentials(const ClassTile<double>& tile, const double* bias, double* shifts, double* sums) {
  HWY_DYNAMIC_DISPATCH(exponentials_f64)(tile, bias, shifts, sums);
}
void scale_columns(const ClassTile<float>& tile, const float* factors, float* sums) {
  HWY_DYNAMIC_DISPATCH(scale_columns_f32)(tile, factors, sums);
}
void scale_columns(const ClassTile<double>& tile, const double* factors, double* sums) {
  HWY_DYNAMIC_DISPATCH(scale_columns_f64)(tile, factors, sums);
}

}  // namespace backpass
#endif  // HWY_ONCE
