// The elements of many tensors in pieces, and these in chunks: small tensors share one, large ones have many.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "support/parallel.hpp"

namespace backpass {

/// Of all elements of all tensors, one after the other.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = INT64_MAX;
};

/// Some elements of one tensor.
struct Piece {
  std::size_t tensor;
  std::int64_t begin, count;
};

class Pieces {
 public:
  /// How many elements a piece has; the last of a tensor has fewer, and those that a range cuts.
  static constexpr std::int64_t kMost = 1 << 14;

  template <class T>
  explicit Pieces(std::span<const T> tensors, ElementRange range = {}) {
    std::int64_t first = 0;  // element of this tensor
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::int64_t size = tensors[i].size();
      add(i, std::max<std::int64_t>(0, range.begin - first), std::min(size, range.end - first));
      first += size;
    }
    chunks_.push_back(pieces_.size());
  }

  std::span<const Piece> all() const { return pieces_; }

  /// f(piece, its number)
  template <class F>
  void on_all_threads(const F& f) const {
    parallel_for(static_cast<std::int64_t>(chunks_.size()) - 1, 1, [&](std::int64_t begin, std::int64_t end) {
      const std::size_t stop = chunks_[static_cast<std::size_t>(end)];
      for (std::size_t i = chunks_[static_cast<std::size_t>(begin)]; i < stop; ++i) f(pieces_[i], i);
    });
  }

 private:
  /// Pieces begin at multiples of kMost, so that sums over a tensor do not depend on what stands before it.
  void add(std::size_t tensor, std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t next = std::min(end, (at / kMost + 1) * kMost);
      if (left_in_chunk_ <= 0) {
        chunks_.push_back(pieces_.size());
        left_in_chunk_ = kMost;
      }
      pieces_.push_back({tensor, at, next - at});
      left_in_chunk_ -= next - at;
      at = next;
    }
  }

  std::vector<Piece> pieces_;
  std::vector<std::size_t> chunks_;  // first piece of each, and the end
  std::int64_t left_in_chunk_ = 0;
};

}  // namespace backpass
