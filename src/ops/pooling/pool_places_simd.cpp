// Largest elements of image windows with their places, many windows of a row at once. The bits of pool_places.cpp's
// loops over single windows, which do the rest: windows at the border, and those that are further apart than two.
#include <algorithm>

#include "ops/pooling/pool_places.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/pooling/pool_places_simd.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

/// Elements 0, kStride, 2 * kStride, ... from `x` on. With a stride of two, one more element is read than used.
template <int kStride, class D>
HWY_INLINE hn::Vec<D> load_apart(D d, const float* x) {
  if constexpr (kStride == 1) return hn::LoadU(d, x);
  return hn::ConcatEven(d, hn::LoadU(d, x + hn::Lanes(d)), hn::LoadU(d, x));
}

template <class D>
HWY_INLINE void store_places(D /*d*/, hn::Vec<D> place, std::uint8_t* to) {
  const hn::Rebind<std::int32_t, D> ints;
  const hn::Rebind<std::uint8_t, D> bytes;
  hn::StoreU(hn::DemoteTo(bytes, hn::ConvertTo(ints, place)), bytes, to);
}

/// One row of windows that are whole sideways.
struct Row {
  const float* x;     ///< first element of the first window
  const float* last;  ///< end of what may be read
  std::int64_t rows;  ///< of each window
  std::int64_t columns, row_step, column_step;
};

/// As many windows as vectors hold of the `count` at `row`, from the `done`th on: how many are done then.
template <int kStride, class D>
std::int64_t pool_vectors(D d, const Row& row, std::int64_t done, std::int64_t count, float* y, std::uint8_t* places) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const float* corner = row.x + (row.rows - 1) * row.row_step + (row.columns - 1) * row.column_step;
  for (; done + lanes <= count; done += lanes) {
    if (corner + (done + lanes) * kStride > row.last) break;
    const float* first = row.x + done * kStride;
    auto best = load_apart<kStride>(d, first);
    auto place = hn::Zero(d);
    for (std::int64_t r = 0; r < row.rows; ++r) {
      for (std::int64_t c = 0; c < row.columns; ++c) {
        const auto value = load_apart<kStride>(d, first + r * row.row_step + c * row.column_step);
        const auto wins = hn::Or(hn::Gt(value, best), hn::AndNot(hn::IsNaN(best), hn::IsNaN(value)));
        best = hn::IfThenElse(wins, value, best);
        place = hn::IfThenElse(wins, hn::Set(d, static_cast<float>(r * row.columns + c)), place);
      }
    }
    hn::StoreU(best, d, y + done);
    store_places(d, place, places + done);
  }
  return done;
}

template <int kStride>
std::int64_t pool_row(const Row& row, std::int64_t count, float* y, std::uint8_t* places) {
  std::int64_t done = pool_vectors<kStride>(hn::ScalableTag<float>(), row, 0, count, y, places);
  done = pool_vectors<kStride>(hn::CappedTag<float, 8>(), row, done, count, y, places);
  return pool_vectors<kStride>(hn::CappedTag<float, 4>(), row, done, count, y, places);
}

void places_planes(const PoolWindows& w, const WholeColumns& whole, const float* x, float* y, std::uint8_t* places,
                   std::int64_t begin, std::int64_t end) {
  const PoolGeometry& g = w.geometry;
  const std::int64_t in_size = g.in[0] * g.in[1];
  const float* last = x + g.planes * in_size;
  const std::int64_t count = whole.end - whole.begin;
  const std::int64_t row_step = g.dilation[0] * g.in[1];
  for (std::int64_t plane = begin; plane < end; ++plane) {
    for (std::int64_t i = 0; i < g.out[0]; ++i) {
      const PoolSpan& rows = w.at(0, i);
      const std::int64_t o = (plane * g.out[0] + i) * g.out[1];
      std::int64_t done = 0;
      if (rows.count > 0 && count > 0) {
        const float* first = x + plane * in_size + rows.first * g.in[1] + w.at(1, whole.begin).first;
        const Row row{first, last, rows.count, g.kernel[1], row_step, g.dilation[1]};
        float* to = y + o + whole.begin;
        std::uint8_t* at = places + o + whole.begin;
        done = g.stride[1] == 1 ? pool_row<1>(row, count, to, at) : pool_row<2>(row, count, to, at);
      }
      const PlaneWindows<float> plane_windows{w, x + plane * in_size, y + plane * g.out[0] * g.out[1],
                                              places + plane * g.out[0] * g.out[1]};
      plane_windows.pool(i, 0, whole.begin);
      plane_windows.pool(i, whole.begin + done, g.out[1]);
    }
  }
}

/// A row of 2 x 2 windows side by side, to the two rows that they come from.
template <class D>
std::int64_t spread_vectors(D d, std::int64_t done, std::int64_t count, const float* dy, const std::uint8_t* places,
                            float* above, float* below) {
  const hn::Rebind<std::int32_t, D> ints;
  const hn::Rebind<std::uint8_t, D> bytes;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (; done + lanes <= count; done += lanes) {
    const auto place = hn::PromoteTo(ints, hn::LoadU(bytes, places + done));
    const auto share = hn::Add(hn::LoadU(d, dy + done), hn::Zero(d));  // never -0, as where shares are added to 0
    const auto at = [&](std::int32_t k) {
      return hn::IfThenElseZero(hn::RebindMask(d, hn::Eq(place, hn::Set(ints, k))), share);
    };
    hn::StoreInterleaved2(at(0), at(1), d, above + 2 * done);
    hn::StoreInterleaved2(at(2), at(3), d, below + 2 * done);
  }
  return done;
}

void spread_pairs_planes(std::int64_t height, std::int64_t width, std::int64_t rows, std::int64_t columns,
                         const float* dy, const std::uint8_t* places, float* dx, std::int64_t begin, std::int64_t end) {
  for (std::int64_t plane = begin; plane < end; ++plane) {
    float* to = dx + plane * height * width;
    for (std::int64_t i = 0; i < rows; ++i) {
      const float* from = dy + (plane * rows + i) * columns;
      const std::uint8_t* at = places + (plane * rows + i) * columns;
      float* above = to + 2 * i * width;
      float* below = above + width;
      std::int64_t done = spread_vectors(hn::ScalableTag<float>(), 0, columns, from, at, above, below);
      done = spread_vectors(hn::CappedTag<float, 4>(), done, columns, from, at, above, below);
      for (; done < columns; ++done) {
        for (int k = 0; k < 4; ++k) {
          (k < 2 ? above : below)[2 * done + k % 2] = at[done] == k ? from[done] + 0.0F : 0.0F;
        }
      }
      std::fill(above + 2 * columns, above + width, 0.0F);
      std::fill(below + 2 * columns, below + width, 0.0F);
    }
    std::fill(to + 2 * rows * width, to + height * width, 0.0F);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

HWY_EXPORT(places_planes);
HWY_EXPORT(spread_pairs_planes);

}  // namespace

void pool_places_of_planes(const PoolWindows& windows, const WholeColumns& whole, const float* x, float* y,
                           std::uint8_t* places, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(places_planes)(windows, whole, x, y, places, begin, end);
}

void spread_pairs(const PoolGeometry& g, const float* dy, const std::uint8_t* places, float* dx, std::int64_t begin,
                  std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(spread_pairs_planes)(g.in[0], g.in[1], g.out[0], g.out[1], dy, places, dx, begin, end);
}

}  // namespace backpass
#endif
