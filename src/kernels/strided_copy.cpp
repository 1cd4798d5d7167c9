#include "kernels/strided_copy.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "kernels/transpose_tile.hpp"
#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass::kernels {
namespace {

constexpr std::int64_t kBlock = 1 << 14;  // elements of one piece of a long row
constexpr std::int64_t kTile = 256;       // rows filled by one strip of transposed squares: runs worth prefetching
constexpr std::int64_t kShortRow = 64;    // elements; shorter rows are done several at a time

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
  auto contiguous = std::find_if(outer_.begin(), outer_.end(), [](const CopyLoop& l) { return l.from == 1; });
  route_ = Route::strided;
  if (inner_.to == 1 && inner_.from == 1) route_ = Route::rows;
  if (inner_.to == 1 && inner_.from == 0) route_ = Route::fill;
  if (inner_.to == 1 && inner_.from != 1 && inner_.from != 0 && contiguous != outer_.end()) {
    route_ = Route::tiles;
    middle_ = *contiguous;
    outer_.erase(contiguous);
  } else if (inner_.extent < kShortRow && !outer_.empty()) {
    middle_ = outer_.back();
    outer_.pop_back();
  }
  cut();
}

void StridedCopy::cut() {
  cuts_inner_ = middle_.extent == 1;
  const CopyLoop& loop = cuts_inner_ ? inner_ : middle_;
  std::int64_t limit =
      cuts_inner_ ? kBlock : (route_ == Route::tiles ? kTile : std::max(kBlock / inner_.extent, kTile));
  piece_ = std::min(loop.extent, limit);
  pieces_ = (loop.extent + piece_ - 1) / piece_;
  if (pieces_ > 1) outer_.push_back({pieces_, piece_ * loop.from, piece_ * loop.to});
  ensure(outer_.size() <= kMaxLoops, "copy of ", outer_.size(), " nested loops");
  items_ = 1;
  for (const CopyLoop& l : outer_) items_ *= l.extent;
}

void StridedCopy::operator()(const void* from, void* to) const {
  if (route_ == Route::empty) return;
  std::int64_t extent = cuts_inner_ ? inner_.extent : middle_.extent;
  std::int64_t work = piece_ * (cuts_inner_ ? 1 : inner_.extent);
  visit_storage(dtype_, [&]<class T>() {
    parallel_for(items_, grain_for(work), [&](std::int64_t begin, std::int64_t end) {
      std::int64_t item = begin;
      for_rows(outer_, begin, end, [&](std::int64_t f, std::int64_t t) {
        std::int64_t count = pieces_ == 1 ? piece_ : std::min(piece_, extent - (item++ % pieces_) * piece_);
        run_item(static_cast<const T*>(from) + f, static_cast<T*>(to) + t, count);
      });
    });
  });
}

template <class T>
void StridedCopy::run_item(const T* from, T* to, std::int64_t count) const {
  if (cuts_inner_) return run_row(from, to, count);
  if constexpr (std::is_unsigned_v<T>) {
    if (route_ == Route::tiles) return transpose_tile(from, inner_.from, to, middle_.to, count, inner_.extent);
  }
  for (std::int64_t i = 0; i < count; ++i) run_row(from + i * middle_.from, to + i * middle_.to, inner_.extent);
}

template <class T>
void StridedCopy::run_row(const T* from, T* to, std::int64_t count) const {
  if (route_ == Route::rows) {
    copy_run(from, to, count);
  } else if (route_ == Route::fill) {
    std::fill_n(to, count, *from);
  } else {
    copy_strided_run(from, to, count, inner_.from, inner_.to);
  }
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
  visit_storage(dtype, [&]<class T>() {
    const T element = *static_cast<const T*>(value);
    T* out = static_cast<T*>(to);
    parallel_for(count, 1 << 16,
                 [&](std::int64_t begin, std::int64_t end) { std::fill(out + begin, out + end, element); });
  });
}

}  // namespace backpass::kernels
