#include "kernels/blocked.hpp"

#include <algorithm>
#include <limits>

#include "support/parallel.hpp"
#include "support/simd.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/blocked.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 8>;  // a block is a multiple of 8 on every target
using V = hn::Vec<D>;

struct Larger {
  static HWY_INLINE V start() { return hn::Set(D(), -std::numeric_limits<float>::infinity()); }
  static HWY_INLINE V join(V best, V x) {  // NaN wins and stays
    return hn::IfThenElse(hn::Or(hn::Gt(x, best), hn::IsNaN(x)), x, best);
  }
};

struct Sum {
  static HWY_INLINE V start() { return hn::Zero(D()); }
  static HWY_INLINE V join(V sum, V x) { return hn::Add(sum, x); }
};

/// Joins all elements of a window, for the lanes at `x`.
template <class Join>
HWY_INLINE V join_window(const float* x, const PoolSpan& rows, const PoolSpan& cols, std::int64_t row_step,
                         std::int64_t col_step) {
  V result = Join::start();
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const float* at = x + i * row_step;
    for (std::int64_t j = 0; j < cols.count; ++j, at += col_step) result = Join::join(result, hn::LoadU(D(), at));
  }
  return result;
}

/// Joins every window, times factor(rows, cols).
template <class Join, class F>
void pool_planes(const PoolWindows& w, std::int64_t b, const float* x, float* y, std::int64_t begin, std::int64_t end,
                 const F& factor) {
  const PoolGeometry& g = w.geometry;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(D()));
  const std::int64_t row_step = g.dilation[0] * g.in[1] * b;
  const std::int64_t col_step = g.dilation[1] * b;
  for (std::int64_t plane = begin; plane < end; ++plane) {
    const float* from = x + plane * g.in[0] * g.in[1] * b;
    float* to = y + plane * g.out[0] * g.out[1] * b;
    for (std::int64_t i = 0; i < g.out[0]; ++i) {
      const PoolSpan& rows = w.at(0, i);
      for (std::int64_t j = 0; j < g.out[1]; ++j, to += b) {
        const PoolSpan& cols = w.at(1, j);
        const float* first = from + (rows.first * g.in[1] + cols.first) * b;
        const V scale = hn::Set(D(), factor(rows, cols));
        for (std::int64_t k = 0; k < b; k += lanes) {
          const V joined = join_window<Join>(first + k, rows, cols, row_step, col_step);
          hn::StoreU(hn::Mul(joined, scale), D(), to + k);
        }
      }
    }
  }
}

void max_planes(const PoolWindows& w, std::int64_t b, const float* x, float* y, std::int64_t begin, std::int64_t end) {
  pool_planes<Larger>(w, b, x, y, begin, end, [](const PoolSpan&, const PoolSpan&) { return 1.0F; });
}

void average_planes(const PoolWindows& w, std::int64_t b, const float* x, float* y, bool count_padding,
                    std::int64_t begin, std::int64_t end) {
  pool_planes<Sum>(w, b, x, y, begin, end, [=](const PoolSpan& rows, const PoolSpan& cols) {
    std::int64_t count = count_padding ? rows.padded_count * cols.padded_count : rows.count * cols.count;
    return 1.0F / static_cast<float>(std::max<std::int64_t>(1, count));
  });
}

void global_planes(std::int64_t channels, std::int64_t b, std::int64_t rows, std::int64_t cols, const float* x,
                   float* y, std::int64_t begin, std::int64_t end) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(D()));
  const std::int64_t blocks = (channels + b - 1) / b;
  const V scale = hn::Set(D(), 1.0F / static_cast<float>(rows * cols));
  for (std::int64_t plane = begin; plane < end; ++plane) {
    const std::int64_t first = plane % blocks * b, valid = std::min(b, channels - first);
    for (std::int64_t k = 0; k < valid; k += lanes) {
      // Row by row: sums of sums lose less than one long sum.
      V total = hn::Zero(D());
      const float* at = x + plane * rows * cols * b + k;
      for (std::int64_t i = 0; i < rows; ++i) {
        V sum = hn::Zero(D());
        for (std::int64_t j = 0; j < cols; ++j, at += b) sum = hn::Add(sum, hn::LoadU(D(), at));
        total = hn::Add(total, sum);
      }
      const auto some = hn::FirstN(D(), static_cast<std::size_t>(std::min(lanes, valid - k)));
      hn::BlendedStore(hn::Mul(total, scale), some, D(), y + plane / blocks * channels + first + k);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {
namespace {

HWY_EXPORT(max_planes);
HWY_EXPORT(average_planes);
HWY_EXPORT(global_planes);

std::int64_t grain_of(const PoolGeometry& g, std::int64_t b) {
  return grain_for(element_count(g.out) * element_count(g.kernel) * b);
}

}  // namespace

void blocked_max_pool(const PoolWindows& windows, std::int64_t b, const float* x, float* y) {
  parallel_for(windows.geometry.planes, grain_of(windows.geometry, b), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(max_planes)(windows, b, x, y, begin, end);
  });
}

void blocked_average_pool(const PoolWindows& windows, std::int64_t b, const float* x, float* y, bool count_padding) {
  parallel_for(windows.geometry.planes, grain_of(windows.geometry, b), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(average_planes)(windows, b, x, y, count_padding, begin, end);
  });
}

void blocked_global_average(std::int64_t images, std::int64_t channels, std::int64_t b, std::int64_t rows,
                            std::int64_t cols, const float* x, float* y) {
  const std::int64_t planes = images * ((channels + b - 1) / b);
  parallel_for(planes, grain_for(rows * cols * b), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(global_planes)(channels, b, rows, cols, x, y, begin, end);
  });
}

namespace {

// Positions copied at a time, so that the strided side stays in the first-level cache.
constexpr std::int64_t kPositions = 64;

/// A piece of a block of channels: where it lies on both sides, and what there is of it.
struct Piece {
  std::int64_t plain, blocked, valid;  ///< first elements; channels
  std::int64_t first, last;            ///< positions
};

template <class F>
void for_each_piece(std::int64_t images, std::int64_t channels, std::int64_t b, std::int64_t size, const F& f) {
  const std::int64_t pieces = (size + kPositions - 1) / kPositions;
  const std::int64_t blocks = (channels + b - 1) / b;
  parallel_for(images * blocks * pieces, grain_for(kPositions * b), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t plane = i / pieces, channel = plane % blocks * b;
      const std::int64_t first = i % pieces * kPositions;
      f(Piece{(plane / blocks * channels + channel) * size, plane * b * size, std::min(b, channels - channel), first,
              std::min(size, first + kPositions)});
    }
  });
}

}  // namespace

void to_blocked(std::int64_t images, std::int64_t channels, std::int64_t b, std::int64_t size, const float* x,
                float* y) {
  for_each_piece(images, channels, b, size, [&](const Piece& p) {
    if (p.valid < b) std::fill(y + p.blocked + p.first * b, y + p.blocked + p.last * b, 0.0F);
    for (std::int64_t c = 0; c < p.valid; ++c) {
      for (std::int64_t i = p.first; i < p.last; ++i) y[p.blocked + i * b + c] = x[p.plain + c * size + i];
    }
  });
}

void from_blocked(std::int64_t images, std::int64_t channels, std::int64_t b, std::int64_t size, const float* x,
                  float* y) {
  for_each_piece(images, channels, b, size, [&](const Piece& p) {
    for (std::int64_t c = 0; c < p.valid; ++c) {
      for (std::int64_t i = p.first; i < p.last; ++i) y[p.plain + c * size + i] = x[p.blocked + i * b + c];
    }
  });
}

}  // namespace backpass
#endif
