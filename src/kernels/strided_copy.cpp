#include "kernels/strided_copy.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass::kernels {
namespace {

constexpr std::int64_t kBlock = 1 << 14;  // elements of one piece of a long row
constexpr std::int64_t kTile = 32;        // edge of a transposed tile: both sides stay in L1

std::vector<CopyLoop> simplified(std::span<const std::int64_t> dims, std::span<const std::int64_t> from,
                                 std::span<const std::int64_t> to) {
  std::vector<CopyLoop> loops;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != 1) loops.push_back({dims[i], from[i], to[i]});
  }
  std::stable_sort(loops.begin(), loops.end(),
                   [](const CopyLoop& a, const CopyLoop& b) { return std::abs(a.to) > std::abs(b.to); });
  std::vector<CopyLoop> merged;
  for (const CopyLoop& loop : loops) {
    if (!merged.empty() && merged.back().from == loop.from * loop.extent && merged.back().to == loop.to * loop.extent) {
      merged.back() = {merged.back().extent * loop.extent, loop.from, loop.to};
    } else {
      merged.push_back(loop);
    }
  }
  return merged;
}

template <class T>
void copy_run(const T* from, T* to, std::int64_t count) {
  if (count * static_cast<std::int64_t>(sizeof(T)) <= 64) {  // shorter than a call to memcpy is worth
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[i];
  } else {
    std::copy_n(from, count, to);
  }
}

template <class T>
void copy_strided_run(const T* from, T* to, std::int64_t count, std::int64_t from_step, std::int64_t to_step) {
  for (std::int64_t i = 0; i < count; ++i) to[i * to_step] = from[i * from_step];
}

}  // namespace

StridedCopy::StridedCopy(DType dtype, std::span<const std::int64_t> dims, std::span<const std::int64_t> from_strides,
                         std::span<const std::int64_t> to_strides)
    : dtype_(dtype) {
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return;
  outer_ = simplified(dims, from_strides, to_strides);
  if (!outer_.empty()) {
    inner_ = outer_.back();
    outer_.pop_back();
  }
  route_ = Route::strided;
  if (inner_.to == 1) {
    auto contiguous = std::find_if(outer_.begin(), outer_.end(), [](const CopyLoop& l) { return l.from == 1; });
    if (inner_.from == 1) {
      route_ = Route::rows;
    } else if (inner_.from == 0) {
      route_ = Route::fill;
    } else if (contiguous != outer_.end()) {
      route_ = Route::tiles;
      across_ = *contiguous;
      outer_.erase(contiguous);
    }
  }
  // Long rows are cut into pieces, so that a single one still uses every thread.
  const CopyLoop& cut = route_ == Route::tiles ? across_ : inner_;
  piece_ = std::min(cut.extent, route_ == Route::tiles ? kTile : kBlock);
  pieces_ = (cut.extent + piece_ - 1) / piece_;
  if (pieces_ > 1) outer_.push_back({pieces_, piece_ * cut.from, piece_ * cut.to});
  ensure(outer_.size() <= kMaxLoops, "copy of ", outer_.size(), " nested loops");
  items_ = 1;
  for (const CopyLoop& loop : outer_) items_ *= loop.extent;
}

void StridedCopy::operator()(const void* from, void* to) const {
  if (route_ == Route::empty) return;
  visit_storage(dtype_, [&]<class T>() { run(static_cast<const T*>(from), static_cast<T*>(to)); });
}

template <class T>
void StridedCopy::run(const T* from, T* to) const {
  if (route_ == Route::tiles) return run_tiles(from, to);
  run_rows(from, to);
}

template <class T>
void StridedCopy::run_rows(const T* from, T* to) const {
  parallel_for(items_, grain_for(piece_), [&](std::int64_t begin, std::int64_t end) {
    std::int64_t item = begin;
    for_rows(outer_, begin, end, [&](std::int64_t f, std::int64_t t) {
      std::int64_t count = pieces_ == 1 ? piece_ : std::min(piece_, inner_.extent - (item++ % pieces_) * piece_);
      if (route_ == Route::rows) {
        copy_run(from + f, to + t, count);
      } else if (route_ == Route::fill) {
        std::fill_n(to + t, count, from[f]);
      } else {
        copy_strided_run(from + f, to + t, count, inner_.from, inner_.to);
      }
    });
  });
}

template <class T>
void StridedCopy::run_tiles(const T* from, T* to) const {
  parallel_for(items_, grain_for(piece_ * inner_.extent), [&](std::int64_t begin, std::int64_t end) {
    std::int64_t item = begin;
    for_rows(outer_, begin, end, [&](std::int64_t f, std::int64_t t) {
      std::int64_t height = pieces_ == 1 ? piece_ : std::min(piece_, across_.extent - (item++ % pieces_) * piece_);
      for (std::int64_t column = 0; column < inner_.extent; column += kTile) {
        std::int64_t width = std::min(kTile, inner_.extent - column);
        const T* source = from + f + column * inner_.from;
        T* target = to + t + column;
        for (std::int64_t i = 0; i < height; ++i) {
          copy_strided_run(source + i, target + i * across_.to, width, inner_.from, 1);
        }
      }
    });
  });
}

void copy_elements(DType dtype, const void* from, void* to, std::int64_t count) {
  if (is_sub_byte(dtype)) {
    count = static_cast<std::int64_t>(byte_size(dtype, count));
    dtype = DType::uint8;
  }
  std::int64_t one = 1;
  StridedCopy(dtype, {&count, 1}, {&one, 1}, {&one, 1})(from, to);
}

void fill_elements(DType dtype, const void* value, void* to, std::int64_t count) {
  std::int64_t zero = 0;
  std::int64_t one = 1;
  StridedCopy(dtype, {&count, 1}, {&zero, 1}, {&one, 1})(value, to);
}

}  // namespace backpass::kernels
