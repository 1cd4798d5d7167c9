// The transforms of Winograd's convolutions over 3 x 3 windows, as functions of vectors, one axis at a time.
//
// A tile of kOut + 2 elements d and three weights w give kOut results: y = A'((G w) * (B' d)), where the product is
// element by element. What a matrix does forward, its transpose does to gradients. The matrices evaluate polynomials at
// points: 0, 1, -1 and infinity for two results; 0, +-3/4, +-3/2 and infinity for four. These points are exact in
// binary and not far from one, so that errors stay within about twice those of sums taken directly; the usual +-1, +-2
// have five times as much (docs/winograd.md).
#if defined(BACKPASS_WINOGRAD_TILES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef BACKPASS_WINOGRAD_TILES_INL
#undef BACKPASS_WINOGRAD_TILES_INL
#else
#define BACKPASS_WINOGRAD_TILES_INL
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace backpass::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using WinogradVectors = hn::ScalableTag<float>;
using V = hn::Vec<WinogradVectors>;

inline std::int64_t lane_count() { return static_cast<std::int64_t>(hn::Lanes(WinogradVectors())); }

/// Rows [begin, end) of an image of vectors, each the channels of a pixel.
struct Pixels {
  const float* data;  ///< of row `begin`
  std::int64_t begin, end, width;

  const float* at(std::int64_t row, std::int64_t column) const {
    return data + ((row - begin) * width + column) * lane_count();
  }
};

/// kEdge x kEdge vectors from (top, left) on; zeros where there are no pixels.
template <int kEdge>
HWY_INLINE void load_square(const Pixels& pixels, std::int64_t top, std::int64_t left, V* square) {
  const WinogradVectors d;
  if (top >= pixels.begin && top + kEdge <= pixels.end && left >= 0 && left + kEdge <= pixels.width) {
#pragma GCC unroll 36
    for (int i = 0; i < kEdge; ++i) {
      const float* row = pixels.at(top + i, left);
#pragma GCC unroll 36
      for (int j = 0; j < kEdge; ++j) square[i * kEdge + j] = hn::LoadU(d, row + j * lane_count());
    }
    return;
  }
#pragma GCC unroll 36
  for (int k = 0; k < kEdge * kEdge; ++k) {
    const std::int64_t row = top + k / kEdge, column = left + k % kEdge;
    const bool is_inside = row >= pixels.begin && row < pixels.end && column >= 0 && column < pixels.width;
    square[k] = is_inside ? hn::LoadU(d, pixels.at(row, column)) : hn::Zero(d);
  }
}

HWY_INLINE V times(float factor, V v) { return hn::Mul(hn::Set(WinogradVectors(), factor), v); }
/// a + factor * b
HWY_INLINE V plus(V a, float factor, V b) { return hn::MulAdd(hn::Set(WinogradVectors(), factor), b, a); }

/// Two results of four elements.
struct TwoResults {
  static constexpr int kOut = 2, kTile = 4;

  static HWY_INLINE void from_image(const V* d, V* v) {  // B'
    v[0] = hn::Sub(d[0], d[2]);
    v[1] = hn::Add(d[2], d[1]);
    v[2] = hn::Sub(d[2], d[1]);
    v[3] = hn::Sub(d[3], d[1]);
  }
  static HWY_INLINE void to_results(const V* m, V* y) {  // A'
    y[0] = hn::Add(m[0], hn::Add(m[1], m[2]));
    y[1] = hn::Add(hn::Sub(m[1], m[2]), m[3]);
  }
  static HWY_INLINE void from_results(const V* y, V* m) {  // A
    m[0] = y[0];
    m[1] = hn::Add(y[0], y[1]);
    m[2] = hn::Sub(y[0], y[1]);
    m[3] = y[1];
  }
  static HWY_INLINE void from_weights(const V* w, V* u) {  // G
    const V even = times(0.5F, hn::Add(w[0], w[2]));
    u[0] = w[0];
    u[1] = plus(even, 0.5F, w[1]);
    u[2] = plus(even, -0.5F, w[1]);
    u[3] = w[2];
  }
  static HWY_INLINE void to_weights(const V* u, V* w) {  // G'
    const V even = times(0.5F, hn::Add(u[1], u[2]));
    w[0] = hn::Add(u[0], even);
    w[1] = times(0.5F, hn::Sub(u[1], u[2]));
    w[2] = hn::Add(u[3], even);
  }
};

/// Four results of six elements.
struct FourResults {
  static constexpr int kOut = 4, kTile = 6;
  static constexpr float a = 0.75F, b = 1.5F;  // the points
  static constexpr float aa = a * a, bb = b * b;
  // The products of a point's distances from all others.
  static constexpr float n0 = aa * bb, na = 2 * aa * (aa - bb), nb = 2 * bb * (bb - aa);

  static HWY_INLINE void from_image(const V* d, V* v) {
    const V even_a = plus(d[4], -bb, d[2]), odd_a = plus(d[3], -bb, d[1]);
    const V even_b = plus(d[4], -aa, d[2]), odd_b = plus(d[3], -aa, d[1]);
    v[0] = plus(plus(d[4], -(aa + bb), d[2]), n0, d[0]);
    v[1] = plus(even_a, a, odd_a);
    v[2] = plus(even_a, -a, odd_a);
    v[3] = plus(even_b, b, odd_b);
    v[4] = plus(even_b, -b, odd_b);
    v[5] = plus(plus(d[5], -(aa + bb), d[3]), n0, d[1]);
  }
  static HWY_INLINE void to_results(const V* m, V* y) {
    const V even_a = hn::Add(m[1], m[2]), odd_a = hn::Sub(m[1], m[2]);
    const V even_b = hn::Add(m[3], m[4]), odd_b = hn::Sub(m[3], m[4]);
    y[0] = hn::Add(m[0], hn::Add(even_a, even_b));
    y[1] = plus(times(a, odd_a), b, odd_b);
    y[2] = plus(times(aa, even_a), bb, even_b);
    y[3] = plus(plus(m[5], a * aa, odd_a), b * bb, odd_b);
  }
  static HWY_INLINE void from_results(const V* y, V* m) {
    const V even_a = plus(y[0], aa, y[2]), odd_a = plus(times(a, y[1]), a * aa, y[3]);
    const V even_b = plus(y[0], bb, y[2]), odd_b = plus(times(b, y[1]), b * bb, y[3]);
    m[0] = y[0];
    m[1] = hn::Add(even_a, odd_a);
    m[2] = hn::Sub(even_a, odd_a);
    m[3] = hn::Add(even_b, odd_b);
    m[4] = hn::Sub(even_b, odd_b);
    m[5] = y[3];
  }
  static HWY_INLINE void from_weights(const V* w, V* u) {
    const V even_a = plus(times(1 / na, w[0]), aa / na, w[2]);
    const V even_b = plus(times(1 / nb, w[0]), bb / nb, w[2]);
    u[0] = times(1 / n0, w[0]);
    u[1] = plus(even_a, a / na, w[1]);
    u[2] = plus(even_a, -a / na, w[1]);
    u[3] = plus(even_b, b / nb, w[1]);
    u[4] = plus(even_b, -b / nb, w[1]);
    u[5] = w[2];
  }
  static HWY_INLINE void to_weights(const V* u, V* w) {
    const V even_a = hn::Add(u[1], u[2]), odd_a = hn::Sub(u[1], u[2]);
    const V even_b = hn::Add(u[3], u[4]), odd_b = hn::Sub(u[3], u[4]);
    w[0] = plus(plus(times(1 / n0, u[0]), 1 / na, even_a), 1 / nb, even_b);
    w[1] = plus(times(a / na, odd_a), b / nb, odd_b);
    w[2] = plus(plus(u[5], aa / na, even_a), bb / nb, even_b);
  }
};

/// Both axes of a square: kFrom x kFrom vectors by rows into kTo x kTo.
template <int kFrom, int kTo, class F>
HWY_INLINE void both_axes(const F& along, const V* from, V* to) {
  V half[kTo * kFrom];  // NOLINT: vectors in registers and on the stack
#pragma GCC unroll 6
  for (int j = 0; j < kFrom; ++j) {
    V column[kFrom], result[kTo];  // NOLINT
#pragma GCC unroll 6
    for (int i = 0; i < kFrom; ++i) column[i] = from[i * kFrom + j];
    along(column, result);
#pragma GCC unroll 6
    for (int i = 0; i < kTo; ++i) half[i * kFrom + j] = result[i];
  }
#pragma GCC unroll 6
  for (int i = 0; i < kTo; ++i) along(half + i * kFrom, to + i * kTo);
}

}  // namespace backpass::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
