// Where one chunk of the rows of a linear loss (linear_loss.hpp) is worked on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/class_tiles.hpp"
#include "kernels/gemm.hpp"
#include "ops/losses/linear_loss.hpp"

namespace backpass {

// Classes of one product, in whole tiles, where threads share it: what one step leaves is still in the cache when the
// next one reads it. Going back there are more steps, and weights to keep there as well.
inline constexpr std::int64_t kForwardClasses = 12 * kTileClasses;
inline constexpr std::int64_t kBackwardClasses = 3 * kTileClasses;
// Where threads have shares of their own: how many there are at most, and classes that are worked on together.
inline constexpr std::int64_t kMostShares = 16;
inline constexpr std::int64_t kPartClasses = kTileClasses / 2;
inline constexpr std::int64_t kPackedRows = 64;

inline std::int64_t tile_count(std::int64_t classes) { return (classes + kTileClasses - 1) / kTileClasses; }

/// Whether some classes' scores, and what becomes of them, are one thread's work: then they stay in its cache.
/// Converted weights have one place for all threads.
inline bool keeps_threads_apart(const LinearLossShape& s) { return !s.converts_weight && !s.multiplies_narrow; }

/// Of a chunk of `rows`. Gradients of x are added up share by share, so that their number depends on the sizes only;
/// what they need beyond the first is at most a quarter of the scores. One share: threads work on it together.
inline std::int64_t share_count(const LinearLossShape& s, std::int64_t rows) {
  if (!keeps_threads_apart(s) || rows < kPackedRows) return 1;
  const std::int64_t most = std::min(s.classes / (2 * kPartClasses), 1 + s.classes / (4 * s.features + 1));
  return std::clamp<std::int64_t>(most, 1, kMostShares);
}
/// Shares are whole parts, but for the last one.
inline std::int64_t first_class(std::int64_t share, std::int64_t shares, std::int64_t classes) {
  return std::min(classes, (classes + kPartClasses - 1) / kPartClasses * share / shares * kPartClasses);
}

/// Distance of neighbouring classes. Of many rows an odd number of groups: with a power of two, classes would evict
/// each other from the cache.
inline std::int64_t distance_for(std::int64_t rows) {
  constexpr std::int64_t kFewRows = 4 * kTileColumns;
  if (rows <= kFewRows) return rows;
  return ((rows + kTileColumns - 1) / kTileColumns | 1) * kTileColumns;
}

/// As many rows as columns of whole groups.
inline std::int64_t whole_groups(std::int64_t rows) { return (rows + kTileColumns - 1) / kTileColumns * kTileColumns; }

/// Takes pieces of scratch memory one after the other; without memory, it only adds up their sizes.
class Carver {
 public:
  explicit Carver(std::byte* memory) : memory_(memory) {}
  template <class T>
  T* take(std::int64_t count) {
    constexpr std::size_t kLine = 64;
    std::byte* at = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (static_cast<std::size_t>(count) * sizeof(T) + kLine - 1) / kLine * kLine;
    return reinterpret_cast<T*>(at);
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* memory_;
  std::size_t used_ = 0;
};

template <class T>
struct Workspace {
  T* scores;                     ///< [classes, ld], or one block of it when no gradients are wanted
  T* x;                          ///< [rows, features]: the chunk's rows, where not all rows count
  T* dx;                         ///< the same for their gradients
  std::int64_t class_shares;     ///< of the classes
  T* dx_shares;                  ///< gradients of x by all of these but the first
  bool packs;                    ///< x is packed once for all classes; of few rows that would take memory for nothing
  T* packed;                     ///< x as right factor: of scores, then of gradients of weights
  T* weight;                     ///< of a block of classes, converted
  std::uint16_t* narrow_x;       ///< [rows, features], as bfloat16
  std::uint16_t* narrow_weight;  ///< of a block of classes, as bfloat16
  std::uint16_t* narrow_scores;  ///< gradients of scores of a block of classes, as bfloat16
  T* shifts;                     ///< [tiles, ld]
  T* sums;        ///< [tiles, ld]; then the factors that make probabilities of exponentials, times the row's flow
  T* score_sums;  ///< [tiles, ld]
  T* shares;      ///< [ld]
  double* label_scores;
  double* log_sums;

  Workspace(Carver& c, const LinearLossShape& s, std::int64_t rows) {
    const std::int64_t ld = distance_for(rows);
    const std::int64_t tiles = tile_count(s.classes);
    scores = c.take<T>((s.wants_gradients ? s.classes : std::min(s.classes, kForwardClasses)) * ld);
    x = c.take<T>(rows * s.features);
    dx = c.take<T>(s.wants_gradients ? whole_groups(rows) * s.features : 0);
    class_shares = s.wants_gradients ? share_count(s, rows) : 1;
    dx_shares = c.take<T>((class_shares - 1) * rows * s.features);
    const std::int64_t block = std::min(s.classes, kBackwardClasses);
    const bool narrow = s.multiplies_narrow;
    packs = !narrow && rows >= kPackedRows;
    packed = c.take<T>(
        packs ? std::max(PackedMatrix<T>::elements(s.features, rows), PackedMatrix<T>::elements(rows, s.features)) : 0);
    weight = c.take<T>(s.converts_weight && !narrow ? block * s.features : 0);
    narrow_x = c.take<std::uint16_t>(narrow ? whole_groups(rows) * s.features : 0);
    narrow_weight = c.take<std::uint16_t>(narrow ? block * s.features : 0);
    narrow_scores = c.take<std::uint16_t>(narrow && s.wants_gradients ? block * ld : 0);
    shifts = c.take<T>(tiles * ld);
    sums = c.take<T>(tiles * ld);
    score_sums = c.take<T>(tiles * ld);
    shares = c.take<T>(ld);
    label_scores = c.take<double>(ld);
    log_sums = c.take<double>(ld);
  }
};

}  // namespace backpass
