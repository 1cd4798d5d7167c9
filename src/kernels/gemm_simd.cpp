#include "kernels/gemm_simd.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/simd_fixed.hpp"
#include "support/float_mode.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/gemm_simd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/gemm_pack-inl.hpp"
#include "kernels/gemm_store-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace backpass {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kMostRows = 16;  // of tiles that are narrower than a panel
// Steps of k by which B is fetched ahead by the tile that packs it. Later ones find it near: fetching costs them 2 %.
constexpr std::int64_t kAhead = 24;

using Access = LeftLayout;

/// What a tile does besides: the first to use a panel stores it for the others, the last ones bring the next one near.
enum class Duty { none, packs, fetches };

/// The next panel where it lies: each tile that fetches takes a cache line of every `step` elements, the tile after it
/// begins `shift` elements further.
template <class T>
struct NextPanel {
  const T* data = nullptr;  ///< null: there is none
  std::int64_t step = 0, shift = 0;
};

/// One tile of C.
template <class T>
struct Tile {
  std::int64_t k;
  const T* a;
  std::int64_t lda;
  const T* b;
  std::int64_t b_step;  ///< elements from one row of the panel to the next
  T* keep;              ///< where a tile that packs stores what it reads of B; null: it is packed
  T* c;
  std::int64_t ldc;
  const T* bias;
  std::int64_t cols;
  NextPanel<T> next = {};
};

template <class D, int Rows, int Vectors, Access kAccess, Duty kDuty, class T = hn::TFromD<D>>
HWY_NOINLINE void sum_tile(const Tile<T>& t, const BlockEnd<T>& end) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  using V = hn::Vec<D>;
  const T* HWY_RESTRICT a = t.a;
  const T* HWY_RESTRICT b = t.b;
  T* HWY_RESTRICT keep = t.keep;
  const std::int64_t lda = t.lda;
  const std::int64_t b_step = t.b_step;
  V sum[Rows][Vectors];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 3
    for (int j = 0; j < Vectors; ++j) sum[i][j] = hn::Zero(d);
#pragma GCC unroll 3
    for (int j = 0; j < Vectors; ++j) __builtin_prefetch(t.c + i * t.ldc + j * lanes, 1);  // there when the sums are
  }
  // Twice in a turn: of the instructions that only count there are as few as B's way from its cache leaves room for.
#pragma GCC unroll 2
  for (std::int64_t p = 0, k = t.k; p < k; ++p) {
    V columns[Vectors];
#pragma GCC unroll 3
    for (int j = 0; j < Vectors; ++j) {
      columns[j] = hn::LoadU(d, b + j * lanes);
      if constexpr (kDuty == Duty::packs) hn::Store(columns[j], d, keep + j * lanes);
    }
    if constexpr (kDuty == Duty::fetches) __builtin_prefetch(t.next.data + p * t.next.step, 0, 2);
    if constexpr (kDuty == Duty::packs) {
#pragma GCC unroll 3
      for (int j = 0; j < Vectors; ++j) __builtin_prefetch(b + kAhead * b_step + j * lanes);
      keep += Vectors * lanes;
    }
    b += b_step;
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      const V ai =
          hn::Set(d, kAccess == Access::rows ? a[i * lda + p] : a[p * (kAccess == Access::columns ? lda : Rows) + i]);
#pragma GCC unroll 3
      for (int j = 0; j < Vectors; ++j) sum[i][j] = hn::MulAdd(ai, columns[j], sum[i][j]);
    }
  }
  if (t.cols == Vectors * lanes) {
    store_tile(d, sum, t.c, t.ldc, t.bias, end);
  } else {
    V copy[Rows][Vectors];  // its address leaves this function, so that the sums themselves may stay in registers
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 3
      for (int j = 0; j < Vectors; ++j) copy[i][j] = sum[i][j];
    }
    store_border(d, copy, t.c, t.ldc, t.bias, t.cols, end);
  }
}

template <class T>
using TileFunction = void (*)(const Tile<T>&, const BlockEnd<T>&);

/// Tiles of 1 to sizeof...(Rows) rows, by their number of rows.
template <class D, int Vectors, Access kAccess, Duty kDuty, int... Rows>
constexpr auto tiles_of(std::integer_sequence<int, Rows...>) {
  return std::array<TileFunction<hn::TFromD<D>>, sizeof...(Rows) + 1>{
      nullptr, sum_tile<D, Rows + 1, Vectors, kAccess, kDuty>...};
}

constexpr int most_rows(Access access, int vectors) {
  return access == Access::bundles ? kRows : std::min(kMostRows, kVectors * kRows / vectors);
}

/// Fetches what is read next into the second-level cache, some lines before each tile: all at once would have to wait.
template <class T>
class Fetcher {
 public:
  Fetcher(const ReadNext<T>& next, std::int64_t m, std::int64_t n) : next_(next) {
    const std::int64_t tiles = 1 + m / kRows * (n / panel_columns<T>());
    const std::int64_t lines = next.rows * (1 + (next.cols - 1) / line_elements<T>());
    lines_ = (lines + tiles - 1) / tiles;
  }
  void some() {
    for (std::int64_t i = 0; i < lines_ && next_.rows > 0; ++i) {
      __builtin_prefetch(next_.data + column_, 0, 2);
      column_ += line_elements<T>();
      if (column_ < next_.cols) continue;
      column_ = 0;
      next_.data += next_.ld;
      --next_.rows;
    }
  }

 private:
  ReadNext<T> next_;
  std::int64_t column_ = 0, lines_;
};

/// Elements from one tile's rows of A to the next row.
template <Access kAccess, class T>
std::int64_t row_step(const Tile<T>& t) {
  return kAccess == Access::rows ? t.lda : kAccess == Access::columns ? 1 : t.k;
}

/// One panel of columns, given by its first tile.
template <class D, int Vectors, Access kAccess, class T>
void multiply_panel(std::int64_t m, Tile<T> t, const BlockEnd<T>& end, Fetcher<T>& fetcher) {
  constexpr int kMost = most_rows(kAccess, Vectors);
  constexpr auto kTiles = tiles_of<D, Vectors, kAccess, Duty::none>(std::make_integer_sequence<int, kMost>());
  for_each_tile(m, kMost, [&](std::int64_t, std::int64_t rows) {
    fetcher.some();
    kTiles[static_cast<std::size_t>(rows)](t, end);
    t.a += rows * row_step<kAccess>(t);
    t.c += rows * t.ldc;
  });
}

/// The same for a whole panel, which is packed by its first tile where it is not yet; its last tiles fetch the next
/// one.
template <Access kAccess, class T>
void multiply_whole_panel(std::int64_t m, Tile<T> t, const BlockEnd<T>& end, Fetcher<T>& fetcher) {
  constexpr int kMost = most_rows(kAccess, kVectors);
  constexpr auto kRowCounts = std::make_integer_sequence<int, kMost>();
  constexpr auto kTiles = tiles_of<Tag<T>, kVectors, kAccess, Duty::none>(kRowCounts);
  constexpr auto kPacking = tiles_of<Tag<T>, kVectors, kAccess, Duty::packs>(kRowCounts);
  constexpr auto kFetching = tiles_of<Tag<T>, kVectors, kAccess, Duty::fetches>(kRowCounts);
  const std::int64_t lines = panel_columns<T>() / line_elements<T>();
  std::int64_t left = (m + kMost - 1) / kMost;
  for_each_tile(m, kMost, [&](std::int64_t, std::int64_t rows) {
    fetcher.some();
    const bool packs = t.keep != nullptr;
    const bool fetches = !packs && t.next.data != nullptr && left <= lines;
    (packs ? kPacking : fetches ? kFetching : kTiles)[static_cast<std::size_t>(rows)](t, end);
    if (packs) {
      t.b = std::exchange(t.keep, nullptr);
      t.b_step = panel_columns<T>();
    }
    if (fetches) t.next.data += t.next.shift;
    t.a += rows * row_step<kAccess>(t);
    t.c += rows * t.ldc;
    --left;
  });
}

/// Columns right of the last whole vector that half a vector holds: half the work where vectors are the longest.
template <class T>
std::int64_t half_columns(std::int64_t cols) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Tag<T>()));
  const auto half = static_cast<std::int64_t>(hn::Lanes(NarrowTag<T>()));
  return half < lanes && cols % lanes <= half ? cols % lanes : 0;
}

/// The last panel: vectors that are all zeros are left out.
template <Access kAccess, class T>
void multiply_last_panel(std::int64_t m, Tile<T> t, const BlockEnd<T>& end, Fetcher<T>& fetcher) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(Tag<T>()));
  const std::int64_t half = half_columns<T>(t.cols);
  t.cols -= half;
  if (t.cols > 2 * lanes) {
    multiply_panel<Tag<T>, kVectors, kAccess>(m, t, end, fetcher);
  } else if (t.cols > lanes) {
    multiply_panel<Tag<T>, 2, kAccess>(m, t, end, fetcher);
  } else if (t.cols > 0) {
    multiply_panel<Tag<T>, 1, kAccess>(m, t, end, fetcher);
  }
  if (half == 0) return;
  t.b += t.cols;
  t.c += t.cols;
  if (t.bias != nullptr) t.bias += t.cols;
  t.cols = half;
  multiply_panel<NarrowTag<T>, 1, kAccess>(m, t, end, fetcher);
}

template <Access kAccess, class T>
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b,
              std::int64_t b_stride, T* c, std::int64_t ldc, const BlockEnd<T>& end) {
  const std::int64_t panel = panel_columns<T>();
  const TinyAsZero tiny;
  Fetcher<T> fetcher(end.next, m, n);
  for (std::int64_t j = 0; j < n; j += panel, b += b_stride) {
    const std::int64_t cols = std::min(panel, n - j);
    Tile<T> first{k, a, lda, b, panel, nullptr, c + j, ldc, end.bias != nullptr ? end.bias + j : nullptr, cols};
    if (cols == panel) {
      if (j + panel < n) first.next = {b + b_stride, panel, line_elements<T>()};
      multiply_whole_panel<kAccess>(m, first, end, fetcher);
    } else {
      multiply_last_panel<kAccess>(m, first, end, fetcher);
    }
  }
}

template <class T>
void multiply_bundles(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const T* b, std::int64_t b_stride,
                      T* c, std::int64_t ldc, const BlockEnd<T>& end) {
  multiply<Access::bundles>(m, n, k, a, std::int64_t{0}, b, b_stride, c, ldc, end);
}

/// The panel of B that begins at `b`, as tiles fetch it. Of columns stored one after the other only whole ones are.
template <class T>
NextPanel<T> next_panel(bool transposed, std::int64_t k, const T* b, std::int64_t ldb) {
  const std::int64_t line = line_elements<T>();
  if (!transposed) return {b, ldb, line};
  return ldb == k ? NextPanel<T>{b, line, k * line} : NextPanel<T>{};
}

template <Access kAccess, class T>
void multiply_unpacked(bool transposed, std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda,
                       const T* b, std::int64_t ldb, T* room, T* c, std::int64_t ldc, const BlockEnd<T>& end) {
  const std::int64_t panel = panel_columns<T>();
  const std::int64_t distance = transposed ? panel * ldb : panel;
  const TinyAsZero tiny;
  Fetcher<T> fetcher(end.next, m, n);
  for (std::int64_t j = 0; j < n; j += panel, b += distance) {
    Tile<T> first{k, a, lda, b, ldb, room, c + j, ldc, end.bias != nullptr ? end.bias + j : nullptr, panel};
    if (transposed) {
      pack_turned_panel(k, b, ldb, room);
      first.b = std::exchange(first.keep, nullptr);
      first.b_step = panel;
    }
    if (j + panel < n) first.next = next_panel(transposed, k, b + distance, ldb);
    multiply_whole_panel<kAccess>(m, first, end, fetcher);
  }
}

template <class T>
void multiply_unpacked_by(LeftLayout layout, bool transposed, std::int64_t m, std::int64_t n, std::int64_t k,
                          const T* a, std::int64_t lda, const T* b, std::int64_t ldb, T* room, T* c, std::int64_t ldc,
                          const BlockEnd<T>& end) {
  constexpr std::array kRuns{multiply_unpacked<Access::rows, T>, multiply_unpacked<Access::columns, T>,
                             multiply_unpacked<Access::bundles, T>};
  const auto run = kRuns[static_cast<std::size_t>(layout)];
  run(transposed, m, n, k, a, lda, b, ldb, room, c, ldc, end);
}

template <class T>
GemmKernels<T> table() {
  return {panel_columns<T>(),
          kVectors,
          kRows,
          multiply<Access::rows, T>,
          multiply<Access::columns, T>,
          multiply_bundles<T>,
          multiply_unpacked_by<T>,
          bundle<T>,
          pack<T>};
}

GemmKernels<float> table_float() { return table<float>(); }
GemmKernels<double> table_double() { return table<double>(); }

}  // namespace HWY_NAMESPACE
}  // namespace backpass
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace backpass {

HWY_EXPORT(table_float);
HWY_EXPORT(table_double);

template <>
const GemmKernels<float>& gemm_kernels<float>() {
  static const GemmKernels<float> kernels = HWY_DYNAMIC_DISPATCH(table_float)();
  return kernels;
}

template <>
const GemmKernels<double>& gemm_kernels<double>() {
  static const GemmKernels<double> kernels = HWY_DYNAMIC_DISPATCH(table_double)();
  return kernels;
}

}  // namespace backpass
#endif
