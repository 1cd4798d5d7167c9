#include "ops/convolution/depthwise.hpp"

#include "kernels/simd_fixed.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/convolution/depthwise.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Every channel by itself, so that vectors hold channels of inputs and outputs alike.

HWY_INLINE void depthwise_end(const DepthwisePlane& p, V v, std::int64_t at) {
  const D d;
  if (p.residual != nullptr) v = hn::Add(v, hn::LoadU(d, p.residual + at));
  hn::StoreU(hn::Min(hn::Set(d, p.high), hn::Max(hn::Set(d, p.low), v)), d, p.y + at);
}

/// What the pixels of one output row share.
struct DepthwiseRow {
  const float* x;  ///< input row and column that kernel position 0 of pixel 0 meets, maybe outside of the image
  const float* weights;
  std::int64_t row_begin, row_end;  ///< kernel rows inside
  std::int64_t row_stride;          ///< elements between inputs of neighbouring kernel rows
  std::int64_t at;                  ///< of pixel 0 in the output
};

/// `Pixels` neighbouring pixels that see the whole width of the kernel. `Stride` 0: not known at compile time.
template <int Pixels, int Stride>
HWY_INLINE void depthwise_pixels(const DepthwisePlane& p, const DepthwiseRow& r, std::int64_t first,
                                 std::int64_t lane) {
  const D d;
  const std::int64_t next = Stride == 0 ? p.cols.stride * p.block : Stride * static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t tap = p.cols.dilation * p.block;
  V sum[Pixels];
  const V bias = p.bias != nullptr ? hn::LoadU(d, p.bias + lane) : hn::Zero(d);
#pragma GCC unroll 8
  for (int q = 0; q < Pixels; ++q) sum[q] = bias;
  const float* w = r.weights + r.row_begin * p.cols.kernel * p.block + lane;
  const float* row = r.x + r.row_begin * r.row_stride + first * next + lane;
  for (std::int64_t i = r.row_begin; i < r.row_end; ++i, row += r.row_stride) {
    const float* x = row;
    for (std::int64_t j = 0; j < p.cols.kernel; ++j, x += tap, w += p.block) {
      const V weight = hn::LoadU(d, w);
#pragma GCC unroll 8
      for (int q = 0; q < Pixels; ++q) sum[q] = hn::MulAdd(hn::LoadU(d, x + q * next), weight, sum[q]);
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < Pixels; ++q) depthwise_end(p, sum[q], r.at + (first + q) * p.block + lane);
}

/// One pixel at the left or right border; one sum per kernel row, so that additions overlap.
HWY_INLINE void depthwise_border(const DepthwisePlane& p, const DepthwiseRow& r, std::int64_t q, std::int64_t lane) {
  const D d;
  V total = p.bias != nullptr ? hn::LoadU(d, p.bias + lane) : hn::Zero(d);
  for (std::int64_t i = r.row_begin; i < r.row_end; ++i) {
    V sum = hn::Zero(d);
    for (std::int64_t j = p.cols.begin[q]; j < p.cols.end[q]; ++j) {
      const float* x = r.x + i * r.row_stride + (q * p.cols.stride + j * p.cols.dilation) * p.block + lane;
      sum = hn::MulAdd(hn::LoadU(d, x), hn::LoadU(d, r.weights + (i * p.cols.kernel + j) * p.block + lane), sum);
    }
    total = hn::Add(total, sum);
  }
  depthwise_end(p, total, r.at + q * p.block + lane);
}

template <int Stride>
HWY_INLINE void depthwise_row(const DepthwisePlane& p, const DepthwiseRow& r, std::int64_t lane) {
  std::int64_t q = 0;
  for (; q < p.inner_begin; ++q) depthwise_border(p, r, q, lane);
  for (; q + 8 <= p.inner_end; q += 8) depthwise_pixels<8, Stride>(p, r, q, lane);
  if (q + 4 <= p.inner_end) depthwise_pixels<4, Stride>(p, r, q, lane), q += 4;
  switch (p.inner_end - q) {
    case 3:
      depthwise_pixels<3, Stride>(p, r, q, lane);
      break;
    case 2:
      depthwise_pixels<2, Stride>(p, r, q, lane);
      break;
    case 1:
      depthwise_pixels<1, Stride>(p, r, q, lane);
      break;
    default:
      break;
  }
  for (q = p.inner_end; q < p.cols.out; ++q) depthwise_border(p, r, q, lane);
}

void depthwise(const DepthwisePlane& plane, std::int64_t begin, std::int64_t end) {
  const DepthwisePlane p = plane;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(D()));
  const bool whole = p.block == lanes;
  for (std::int64_t o = begin; o < end; ++o) {
    const std::int64_t first = o * p.rows.stride - p.rows.pad;
    const DepthwiseRow r{p.x + (first * p.cols.in - p.cols.pad) * p.block,
                         p.weights,
                         p.rows.begin[o],
                         p.rows.end[o],
                         p.rows.dilation * p.cols.in * p.block,
                         o * p.cols.out * p.block};
    for (std::int64_t lane = 0; lane < p.block; lane += lanes) {
      if (whole && p.cols.stride == 1) {
        depthwise_row<1>(p, r, lane);
      } else if (whole && p.cols.stride == 2) {
        depthwise_row<2>(p, r, lane);
      } else {
        depthwise_row<0>(p, r, lane);
      }
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {

HWY_EXPORT(depthwise);

void depthwise_rows(const DepthwisePlane& plane, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(depthwise)(plane, begin, end);
}

}  // namespace backpass
#endif
