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

/// So many neighbouring columns, as vectors.
template <class T, std::int64_t columns>
struct Group {
  using Tag = hn::CappedTag<T, columns>;
  using V = hn::Vec<Tag>;
  static constexpr auto kLanes = static_cast<std::int64_t>(hn::MaxLanes(Tag()));
  static constexpr auto kVectors = static_cast<int>(columns / kLanes);
  static constexpr std::int64_t kColumns = columns;
};

/// Calls f(group, first column) for all columns: a whole line of the cache, or more, as long as there is one.
template <class T, class F>
HWY_INLINE void for_each_group(std::int64_t width, const F& f) {
  constexpr std::int64_t kFew = 4;
  std::int64_t c = 0;
  for (; c + kTileColumns <= width; c += kTileColumns) f(Group<T, kTileColumns>(), c);
  for (; c + kFew <= width; c += kFew) f(Group<T, kFew>(), c);
  for (; c < width; ++c) f(Group<T, 1>(), c);
}

template <class T>
void score_sums_as(const ClassTile<T>& tile, const T* bias, const T* weights, T* sums) {
  for_each_group<T>(tile.width, [&]<class G>(G, std::int64_t column) {
    const typename G::Tag d;
    typename G::V sum[G::kVectors];
    for (int i = 0; i < G::kVectors; ++i) sum[i] = hn::Zero(d);
    for (std::int64_t j = 0; j < tile.classes; ++j) {
      const T* row = tile.data + j * tile.ld + column;
      const auto add = hn::Set(d, bias == nullptr ? T{0} : bias[j]);
      const auto weight = hn::Set(d, weights == nullptr ? T{1} : weights[j]);
      for (int i = 0; i < G::kVectors; ++i) {
        sum[i] = hn::MulAdd(hn::Add(hn::LoadU(d, row + i * G::kLanes), add), weight, sum[i]);
      }
    }
    for (int i = 0; i < G::kVectors; ++i) hn::StoreU(sum[i], d, sums + column + i * G::kLanes);
  });
}

template <class G, class T>
void exponentials_of_group(const ClassTile<T>& tile, std::int64_t column, const T* bias, T* shifts, T* sums) {
  const typename G::Tag d;
  using V = typename G::V;
  V shift[G::kVectors];
  V sum[G::kVectors];
  for (int i = 0; i < G::kVectors; ++i) {
    shift[i] = hn::Set(d, std::numeric_limits<T>::lowest());  // finite: where all scores are -infinity, terms are 0
    sum[i] = hn::Zero(d);
  }
  for (std::int64_t j = 0; j < tile.classes; ++j) {
    const T* row = tile.data + j * tile.ld + column;
    const V add = hn::Set(d, bias == nullptr ? T{0} : bias[j]);
    for (int i = 0; i < G::kVectors; ++i) {
      shift[i] = hn::Max(hn::Add(hn::LoadU(d, row + i * G::kLanes), add), shift[i]);
    }
  }
  for (std::int64_t j = 0; j < tile.classes; ++j) {
    T* row = tile.data + j * tile.ld + column;
    const V add = hn::Set(d, bias == nullptr ? T{0} : bias[j]);
    for (int i = 0; i < G::kVectors; ++i) {
      const V score = hn::Add(hn::LoadU(d, row + i * G::kLanes), add);
      const V e = exp_of_negative(d, hn::Sub(score, shift[i]));
      hn::StoreU(e, d, row + i * G::kLanes);
      sum[i] = hn::Add(sum[i], e);
    }
  }
  for (int i = 0; i < G::kVectors; ++i) {
    hn::StoreU(shift[i], d, shifts + column + i * G::kLanes);
    hn::StoreU(sum[i], d, sums + column + i * G::kLanes);
  }
}

template <class T>
void exponentials_as(const ClassTile<T>& tile, const T* bias, T* shifts, T* sums) {
  for_each_group<T>(
      tile.width, [&]<class G>(G, std::int64_t column) { exponentials_of_group<G>(tile, column, bias, shifts, sums); });
}

template <class G, class T>
void shifted_exponentials_of_group(const ClassTile<T>& tile, std::int64_t column, const T* bias, const T* shifts,
                                   T* sums) {
  const typename G::Tag d;
  using V = typename G::V;
  const V most = hn::Set(d, T{80});
  V shift[G::kVectors];
  V sum[G::kVectors];
  for (int i = 0; i < G::kVectors; ++i) {
    shift[i] = hn::LoadU(d, shifts + column + i * G::kLanes);
    sum[i] = hn::Zero(d);
  }
  for (std::int64_t j = 0; j < tile.classes; ++j) {
    T* row = tile.data + j * tile.ld + column;
    const V add = hn::Set(d, bias == nullptr ? T{0} : bias[j]);
    for (int i = 0; i < G::kVectors; ++i) {
      const V above = hn::Sub(hn::Add(hn::LoadU(d, row + i * G::kLanes), add), shift[i]);
      const V e = exp_of_negative(d, hn::Min(most, above));  // Min gives its second operand for NaN
      hn::StoreU(e, d, row + i * G::kLanes);
      sum[i] = hn::Add(sum[i], e);
    }
  }
  for (int i = 0; i < G::kVectors; ++i) hn::StoreU(sum[i], d, sums + column + i * G::kLanes);
}

template <class T>
void shifted_exponentials_as(const ClassTile<T>& tile, const T* bias, const T* shifts, T* sums) {
  for_each_group<T>(tile.width, [&]<class G>(G, std::int64_t column) {
    shifted_exponentials_of_group<G>(tile, column, bias, shifts, sums);
  });
}

template <class T>
void weighted_sums_as(const ClassTile<T>& tile, const T* factors, T* sums) {
  using G = Group<T, kTileColumns>;
  const typename G::Tag d;
  const std::int64_t whole = tile.width / G::kLanes * G::kLanes;
  for (std::int64_t j = 0; j < tile.classes; ++j) {
    const T* row = tile.data + j * tile.ld;
    auto sum = hn::Zero(d);
    for (std::int64_t c = 0; c < whole; c += G::kLanes) {
      sum = hn::MulAdd(hn::LoadU(d, row + c), hn::LoadU(d, factors + c), sum);
    }
    T rest = hn::GetLane(hn::SumOfLanes(d, sum));
    for (std::int64_t c = whole; c < tile.width; ++c) rest += row[c] * factors[c];
    sums[j] = rest;
  }
}

template <class T>
void scale_columns_as(const ClassTile<T>& tile, const T* factors, T* sums) {
  using G = Group<T, kTileColumns>;
  const typename G::Tag d;
  const std::int64_t whole = tile.width / G::kLanes * G::kLanes;
  for (std::int64_t j = 0; j < tile.classes; ++j) {
    T* row = tile.data + j * tile.ld;
    auto sum = hn::Zero(d);
    for (std::int64_t c = 0; c < whole; c += G::kLanes) {
      const auto v = hn::Mul(hn::LoadU(d, row + c), hn::LoadU(d, factors + c));
      hn::StoreU(v, d, row + c);
      sum = hn::Add(sum, v);
    }
    T rest = hn::GetLane(hn::SumOfLanes(d, sum));
    for (std::int64_t c = whole; c < tile.width; ++c) rest += row[c] *= factors[c];
    if (sums != nullptr) sums[j] = rest;
  }
}

template <class T>
void subtract_shares_as(const ClassTile<T>& tile, const T* shares, const T* weights) {
  using G = Group<T, kTileColumns>;
  const typename G::Tag d;
  const std::int64_t whole = tile.width / G::kLanes * G::kLanes;
  for (std::int64_t j = 0; j < tile.classes; ++j) {
    T* row = tile.data + j * tile.ld;
    const T weight = weights == nullptr ? T{1} : weights[j];
    const auto each = hn::Set(d, weight);
    for (std::int64_t c = 0; c < whole; c += G::kLanes) {
      hn::StoreU(hn::NegMulAdd(hn::LoadU(d, shares + c), each, hn::LoadU(d, row + c)), d, row + c);
    }
    for (std::int64_t c = whole; c < tile.width; ++c) row[c] -= shares[c] * weight;
  }
}

void score_sums_f32(const ClassTile<float>& tile, const float* bias, const float* weights, float* sums) {
  score_sums_as(tile, bias, weights, sums);
}
void score_sums_f64(const ClassTile<double>& tile, const double* bias, const double* weights, double* sums) {
  score_sums_as(tile, bias, weights, sums);
}
void exponentials_f32(const ClassTile<float>& tile, const float* bias, float* shifts, float* sums) {
  exponentials_as(tile, bias, shifts, sums);
}
void exponentials_f64(const ClassTile<double>& tile, const double* bias, double* shifts, double* sums) {
  exponentials_as(tile, bias, shifts, sums);
}
void shifted_exponentials_f32(const ClassTile<float>& tile, const float* bias, const float* shifts, float* sums) {
  shifted_exponentials_as(tile, bias, shifts, sums);
}
void shifted_exponentials_f64(const ClassTile<double>& tile, const double* bias, const double* shifts, double* sums) {
  shifted_exponentials_as(tile, bias, shifts, sums);
}
void weighted_sums_f32(const ClassTile<float>& tile, const float* factors, float* sums) {
  weighted_sums_as(tile, factors, sums);
}
void weighted_sums_f64(const ClassTile<double>& tile, const double* factors, double* sums) {
  weighted_sums_as(tile, factors, sums);
}
void scale_columns_f32(const ClassTile<float>& tile, const float* factors, float* sums) {
  scale_columns_as(tile, factors, sums);
}
void scale_columns_f64(const ClassTile<double>& tile, const double* factors, double* sums) {
  scale_columns_as(tile, factors, sums);
}
void subtract_shares_f32(const ClassTile<float>& tile, const float* shares, const float* weights) {
  subtract_shares_as(tile, shares, weights);
}
void subtract_shares_f64(const ClassTile<double>& tile, const double* shares, const double* weights) {
  subtract_shares_as(tile, shares, weights);
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {

HWY_EXPORT(score_sums_f32);
HWY_EXPORT(score_sums_f64);
HWY_EXPORT(exponentials_f32);
HWY_EXPORT(exponentials_f64);
HWY_EXPORT(shifted_exponentials_f32);
HWY_EXPORT(shifted_exponentials_f64);
HWY_EXPORT(weighted_sums_f32);
HWY_EXPORT(weighted_sums_f64);
HWY_EXPORT(scale_columns_f32);
HWY_EXPORT(scale_columns_f64);
HWY_EXPORT(subtract_shares_f32);
HWY_EXPORT(subtract_shares_f64);

void score_sums(const ClassTile<float>& tile, const float* bias, const float* weights, float* sums) {
  HWY_DYNAMIC_DISPATCH(score_sums_f32)(tile, bias, weights, sums);
}
void score_sums(const ClassTile<double>& tile, const double* bias, const double* weights, double* sums) {
  HWY_DYNAMIC_DISPATCH(score_sums_f64)(tile, bias, weights, sums);
}
void exponentials(const ClassTile<float>& tile, const float* bias, float* shifts, float* sums) {
  HWY_DYNAMIC_DISPATCH(exponentials_f32)(tile, bias, shifts, sums);
}
void exponentials(const ClassTile<double>& tile, const double* bias, double* shifts, double* sums) {
  HWY_DYNAMIC_DISPATCH(exponentials_f64)(tile, bias, shifts, sums);
}
void shifted_exponentials(const ClassTile<float>& tile, const float* bias, const float* shifts, float* sums) {
  HWY_DYNAMIC_DISPATCH(shifted_exponentials_f32)(tile, bias, shifts, sums);
}
void shifted_exponentials(const ClassTile<double>& tile, const double* bias, const double* shifts, double* sums) {
  HWY_DYNAMIC_DISPATCH(shifted_exponentials_f64)(tile, bias, shifts, sums);
}
void weighted_sums(const ClassTile<float>& tile, const float* factors, float* sums) {
  HWY_DYNAMIC_DISPATCH(weighted_sums_f32)(tile, factors, sums);
}
void weighted_sums(const ClassTile<double>& tile, const double* factors, double* sums) {
  HWY_DYNAMIC_DISPATCH(weighted_sums_f64)(tile, factors, sums);
}
void scale_columns(const ClassTile<float>& tile, const float* factors, float* sums) {
  HWY_DYNAMIC_DISPATCH(scale_columns_f32)(tile, factors, sums);
}
void scale_columns(const ClassTile<double>& tile, const double* factors, double* sums) {
  HWY_DYNAMIC_DISPATCH(scale_columns_f64)(tile, factors, sums);
}
void subtract_shares(const ClassTile<float>& tile, const float* shares, const float* weights) {
  HWY_DYNAMIC_DISPATCH(subtract_shares_f32)(tile, shares, weights);
}
void subtract_shares(const ClassTile<double>& tile, const double* shares, const double* weights) {
  HWY_DYNAMIC_DISPATCH(subtract_shares_f64)(tile, shares, weights);
}

}  // namespace backpass
#endif  // HWY_ONCE
