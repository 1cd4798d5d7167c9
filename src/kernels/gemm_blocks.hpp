// What the ways to compute a matrix product share: how k and C are cut, and how A is laid out for the innermost loop.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/gemm.hpp"
#include "kernels/gemm_simd.hpp"
#include "kernels/thread_buffer.hpp"
#include "support/caches.hpp"
#include "support/parallel.hpp"

namespace backpass {

// The longest stretch of k for which a panel of B is close at hand, and rows of A that stay in the second-level cache.
inline constexpr std::int64_t kDepth = 512;
inline constexpr std::int64_t kBlockRows = 96;
// Columns of C that make a copy of A's rows worth while.
inline constexpr std::int64_t kWorthCopying = 128;
// Columns of a piece whose rows stay in the second-level cache from one stretch of k to the next.
inline constexpr std::int64_t kNearColumns = 768;

inline std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

/// k is cut into stretches of one length, for a short last one would read and write C for little work.
inline std::int64_t stretch_of(std::int64_t k) {
  constexpr std::int64_t kUnit = 8;
  const std::int64_t stretches = std::max<std::int64_t>(1, (k + kDepth - 1) / kDepth);
  return std::max(kUnit, round_up((k + stretches - 1) / stretches, kUnit));
}

/// How C is cut into pieces that are computed independently.
struct Pieces {
  std::int64_t tiles, tile_rows;      ///< of all rows; rows of one
  std::int64_t panels, panel;         ///< of all columns; columns of one
  std::int64_t row_count, col_count;  ///< pieces

  /// Tiles and panels are dealt out evenly: threads that have as many pieces have as much to do.
  std::int64_t first_row(std::int64_t piece) const { return piece * tiles / row_count * tile_rows; }
  std::int64_t first_column(std::int64_t piece) const { return piece * panels / col_count * panel; }
};

// How many pieces there are may depend on the threads at hand: no element's sum does.
inline Pieces pieces_of(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t unit_rows, std::int64_t panel) {
  const int threads = threads_here();
  const std::int64_t enough_pieces = threads == 1 ? 1 : 4 * threads;
  constexpr std::int64_t kLeastWork = std::int64_t{1} << 18;
  const std::int64_t tiles = std::max<std::int64_t>(1, (m + unit_rows - 1) / unit_rows);
  std::int64_t row_count = std::max<std::int64_t>(1, (m + kBlockRows - 1) / kBlockRows);
  if (row_count > threads) row_count = std::min(round_up(row_count, threads), tiles);
  const std::int64_t rows = round_up((m + row_count - 1) / row_count, unit_rows);
  std::int64_t panels = std::max<std::int64_t>(1, (n + panel - 1) / panel);
  std::int64_t wanted = std::max<std::int64_t>(1, enough_pieces / row_count);
  std::int64_t least = kLeastWork / std::max<std::int64_t>(1, rows * std::max<std::int64_t>(k, 1) * panel) + 1;
  std::int64_t per_piece = std::min(panels, std::max(least, (panels + wanted - 1) / wanted));
  if (k > kDepth) per_piece = std::min(per_piece, std::max<std::int64_t>(1, kNearColumns / panel));
  const std::int64_t col_count = (panels + per_piece - 1) / per_piece;
  const std::int64_t even = row_count == 1 && col_count > 1 ? round_up(col_count, threads) : col_count;
  return {tiles, unit_rows, panels, panel, row_count, std::min(even, panels)};
}

/// Rows next to each other, whatever their distance was.
template <class T>
void copy_rows(const T* a, std::int64_t lda, std::int64_t rows, std::int64_t depth, T* out) {
  for (std::int64_t i = 0; i < rows; ++i) std::copy_n(a + i * lda, depth, out + i * depth);
}

/// Rows whole pages apart fall into the same sets of the first-level cache and evict each other, unless there is room
/// in a set for all rows of a tile and more. Half a page apart they do not fill those sets. Copying rows that do not
/// would cost more than it saves.
template <class T>
bool rows_collide(std::int64_t lda) {
  constexpr std::int64_t kBytes = 4096;
  constexpr std::int64_t kEnoughWays = 12;
  return first_level_ways() < kEnoughWays && lda * static_cast<std::int64_t>(sizeof(T)) % kBytes == 0;
}

template <class T>
struct Operand {
  const T* data;
  std::int64_t ld;
  bool transposed;
};

/// Some rows of A over one stretch of k, as the innermost loop reads them.
template <class T>
struct LeftBlock {
  const T* data;
  std::int64_t ld;
  LeftLayout layout;
};

/// Copied where that makes reading them for `cols` columns faster.
template <class T>
LeftBlock<T> left_block(const Operand<T>& a, std::int64_t i0, std::int64_t rows, std::int64_t p, std::int64_t depth,
                        std::int64_t cols) {
  if (a.transposed) {
    T* copy = thread_buffer<T, kCopiedA>(std::max(rows * depth, kBlockRows * kDepth));
    gemm_kernels<T>().bundle(rows, depth, a.data + p * a.ld + i0, a.ld, copy);
    return {copy, 0, LeftLayout::bundles};
  }
  const T* block = a.data + i0 * a.ld + p;
  if (!rows_collide<T>(a.ld) || cols < kWorthCopying) return {block, a.ld, LeftLayout::rows};
  T* copy = thread_buffer<T, kCopiedA>(std::max(rows * depth, kBlockRows * kDepth));
  copy_rows(block, a.ld, rows, depth, copy);
  return {copy, depth, LeftLayout::rows};
}

/// Columns of C from j0 on, after `depth` elements of k from p on.
template <class T>
BlockEnd<T> block_end(std::int64_t p, std::int64_t depth, std::int64_t k, std::int64_t j0, T alpha, T beta,
                      const Epilogue<T>& epilogue) {
  BlockEnd<T> end;
  end.alpha = alpha;
  end.beta = p == 0 ? beta : T(1);
  if (p + depth < k) return end;
  end.bias = epilogue.bias != nullptr ? epilogue.bias + j0 : nullptr;
  end.relu = epilogue.relu;
  return end;
}

template <class T>
void activate(const Epilogue<T>& epilogue, T* c, std::int64_t ldc, std::int64_t rows, std::int64_t cols) {
  if (!epilogue.activate) return;
  if (cols == ldc) return epilogue.activate(c, rows * cols);
  for (std::int64_t i = 0; i < rows; ++i) epilogue.activate(c + i * ldc, cols);
}

/// One piece of C over one stretch of k.
template <class T>
void multiply_stretch(const LeftBlock<T>& a, std::int64_t rows, std::int64_t depth, const T* panels, std::int64_t cols,
                      T* c, std::int64_t ldc, const BlockEnd<T>& end) {
  const GemmKernels<T>& table = gemm_kernels<T>();
  const std::int64_t panel_size = depth * table.panel;
  if (a.layout == LeftLayout::bundles) {
    table.multiply_bundles(rows, cols, depth, a.data, panels, panel_size, c, ldc, end);
  } else {
    const auto multiply = a.layout == LeftLayout::rows ? table.multiply : table.multiply_transposed;
    multiply(rows, cols, depth, a.data, a.ld, panels, panel_size, c, ldc, end);
  }
}

}  // namespace backpass
