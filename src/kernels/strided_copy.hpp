// Copies between two strided layouts of the same box of elements: transpose, slice, expand, tile, concat and split are
// all this one loop nest with other strides.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backpass/dtype.hpp"

namespace backpass::kernels {

/// One loop of the nest: how many steps, and how far each moves in the source and in the destination (in elements).
struct CopyLoop {
  std::int64_t extent;
  std::int64_t from;
  std::int64_t to;
};

/// The loops of a copy, simplified once (unit loops dropped, neighbours merged, destination walked in memory order) and
/// run many times. Source strides may be 0 (broadcast) or negative; destination elements must be distinct.
class StridedCopy {
 public:
  StridedCopy() = default;
  /// Strides in elements. `dtype` may be any whole-byte type or string.
  StridedCopy(DType dtype, std::span<const std::int64_t> dims, std::span<const std::int64_t> from_strides,
              std::span<const std::int64_t> to_strides);

  /// `from` and `to` point at the elements of index 0 along every axis.
  void operator()(const void* from, void* to) const;

 private:
  enum class Route : std::uint8_t { empty, rows, fill, tiles, strided };

  void cut();
  /// The part of one item: `count` steps of the cut loop.
  template <class T>
  void run_item(const T* from, T* to, std::int64_t count) const;
  template <class T>
  void run_row(const T* from, T* to, std::int64_t count) const;

  DType dtype_ = DType::undefined;
  Route route_ = Route::empty;
  std::vector<CopyLoop> outer_;  ///< the last one steps from piece to piece of the cut loop, when there are several
  CopyLoop middle_{1, 0, 0};     ///< tiles: the loop along which the source is contiguous; else one around short rows
  CopyLoop inner_{1, 1, 1};      ///< innermost in the destination
  bool cuts_inner_ = true;       ///< the loop cut into pieces: inner_ or middle_
  std::int64_t piece_ = 1;       ///< steps of the cut loop done at once
  std::int64_t pieces_ = 1;
  std::int64_t items_ = 0;  ///< product of the outer extents
};

/// Copies `count` consecutive elements, in parallel when there are many.
void copy_elements(DType dtype, const void* from, void* to, std::int64_t count);

/// Sets `count` consecutive elements to the one at `value`, in parallel when there are many.
void fill_elements(DType dtype, const void* value, void* to, std::int64_t count);

inline constexpr std::size_t kMaxLoops = 64;

/// Walks rows [begin, end) of a nest of at most kMaxLoops loops in order: visit(from offset, to offset).
template <class Visit>
void for_rows(std::span<const CopyLoop> loops, std::int64_t begin, std::int64_t end, const Visit& visit) {
  std::array<std::int64_t, kMaxLoops> index;  // NOLINT: only what is used is set
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t rest = begin;
  for (std::size_t i = loops.size(); i-- > 0;) {
    index[i] = rest % loops[i].extent;
    rest /= loops[i].extent;
    from += index[i] * loops[i].from;
    to += index[i] * loops[i].to;
  }
  for (std::int64_t row = begin; row < end; ++row) {
    visit(from, to);
    for (std::size_t i = loops.size(); i-- > 0;) {
      from += loops[i].from;
      to += loops[i].to;
      if (++index[i] < loops[i].extent) break;
      from -= loops[i].from * loops[i].extent;
      to -= loops[i].to * loops[i].extent;
      index[i] = 0;
    }
  }
}

}  // namespace backpass::kernels
