#include "kernels/tile_reduce.hpp"

#include <limits>

#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/tile_reduce.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// Long sums are made of sums of this many elements, added up in double.
constexpr std::int64_t kBlock = 4096;

template <class T>
double sum_of_block(const T* x, std::int64_t n) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto a = hn::Zero(d);
  auto b = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    a = hn::Add(a, hn::LoadU(d, x + i));
    b = hn::Add(b, hn::LoadU(d, x + i + lanes));
  }
  if (i + lanes <= n) {
    a = hn::Add(a, hn::LoadU(d, x + i));
    i += lanes;
  }
  T total = hn::GetLane(hn::SumOfLanes(d, hn::Add(a, b)));
  for (; i < n; ++i) total += x[i];
  return static_cast<double>(total);
}

template <class T, bool Mean>
void sum_rows(const void* in, void* out, std::int64_t rows, std::int64_t length) {
  const T* x = static_cast<const T*>(in);
  T* y = static_cast<T*>(out);
  for (std::int64_t r = 0; r < rows; ++r, x += length) {
    double total = 0;
    for (std::int64_t i = 0; i < length; i += kBlock) total += sum_of_block(x + i, std::min(kBlock, length - i));
    y[r] = static_cast<T>(Mean ? total / static_cast<double>(length) : total);
  }
}

struct Larger {
  template <class V>
  static HWY_INLINE V call(V a, V b) {
    return hn::Max(a, b);
  }
  template <class T>
  static bool beats(T a, T b) {
    return a > b;
  }
  template <class T>
  static T first() {
    return -std::numeric_limits<T>::infinity();
  }
};

struct Smaller {
  template <class V>
  static HWY_INLINE V call(V a, V b) {
    return hn::Min(a, b);
  }
  template <class T>
  static bool beats(T a, T b) {
    return a < b;
  }
  template <class T>
  static T first() {
    return std::numeric_limits<T>::infinity();
  }
};

template <class T, class F>
T extreme(const T* x, std::int64_t n) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto best = hn::Set(d, F::template first<T>());
  auto is_nan = hn::IsNaN(best);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    is_nan = hn::Or(is_nan, hn::IsNaN(v));
    best = F::call(best, v);
  }
  if (!hn::AllFalse(d, is_nan)) return std::numeric_limits<T>::quiet_NaN();
  HWY_ALIGN T each[HWY_MAX_BYTES / sizeof(T)];
  hn::Store(best, d, each);
  T result = F::template first<T>();
  for (std::int64_t k = 0; k < lanes; ++k) result = F::beats(each[k], result) ? each[k] : result;
  for (; i < n; ++i) {
    if (x[i] != x[i]) return x[i];
    result = F::beats(x[i], result) ? x[i] : result;
  }
  return result;
}

template <class T, class F>
void extreme_rows(const void* in, void* out, std::int64_t rows, std::int64_t length) {
  const T* x = static_cast<const T*>(in);
  for (std::int64_t r = 0; r < rows; ++r) static_cast<T*>(out)[r] = extreme<T, F>(x + r * length, length);
}

TileRowLoop sum(DType t) {
  return t == DType::float32 ? sum_rows<float, false> : (t == DType::float64 ? sum_rows<double, false> : nullptr);
}
TileRowLoop mean(DType t) {
  return t == DType::float32 ? sum_rows<float, true> : (t == DType::float64 ? sum_rows<double, true> : nullptr);
}
TileRowLoop max(DType t) {
  return t == DType::float32 ? extreme_rows<float, Larger>
                             : (t == DType::float64 ? extreme_rows<double, Larger> : nullptr);
}
TileRowLoop min(DType t) {
  return t == DType::float32 ? extreme_rows<float, Smaller>
                             : (t == DType::float64 ? extreme_rows<double, Smaller> : nullptr);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

HWY_EXPORT(sum);
HWY_EXPORT(mean);
HWY_EXPORT(max);
HWY_EXPORT(min);

template <class T>
void spread(const void* in, void* out, std::int64_t rows, std::int64_t length) {
  T* to = static_cast<T*>(out);
  for (std::int64_t r = 0; r < rows; ++r) to = fill_run(to, length, static_cast<const T*>(in)[r]);
}

}  // namespace

const TileReduction kTileSum{"ReduceSum", [](DType t) { return HWY_DYNAMIC_DISPATCH(sum)(t); }};
const TileReduction kTileMean{"ReduceMean", [](DType t) { return HWY_DYNAMIC_DISPATCH(mean)(t); }};
const TileReduction kTileMax{"ReduceMax", [](DType t) { return HWY_DYNAMIC_DISPATCH(max)(t); }};
const TileReduction kTileMin{"ReduceMin", [](DType t) { return HWY_DYNAMIC_DISPATCH(min)(t); }};

const TileReduction* find_tile_reduction(std::string_view name) {
  for (const TileReduction* reduction : {&kTileSum, &kTileMean, &kTileMax, &kTileMin}) {
    if (reduction->name == name) return reduction;
  }
  return nullptr;
}

TileRowLoop tile_spread_loop(DType type) {
  TileRowLoop loop = nullptr;
  visit_element_size(bit_width(type) / 8, [&]<class T>() { loop = spread<T>; });
  return loop;
}

}  // namespace backpass
#endif
