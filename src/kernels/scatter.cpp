#include "kernels/scatter.hpp"

#include <algorithm>

#include "support/printable.hpp"
#include "support/strides.hpp"
#include "support/visit.hpp"

namespace backpass::kernels {
namespace {

constexpr std::int64_t kColumns = 256;

template <class T>
void combine(Reduction reduction, std::int64_t n, const T* from, T* to) {
  if (reduction == Reduction::none) {
    std::copy_n(from, n, to);
    return;
  }
  if constexpr (!std::is_same_v<T, std::string> && !std::is_same_v<T, Bytes16>) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = combined(reduction, to[i], from[i]);
  }
}

/// Slices one behind the other, none of which overlap.
bool ascend(std::span<const std::int64_t> offsets, std::int64_t slice) {
  return std::adjacent_find(offsets.begin(), offsets.end(),
                            [=](std::int64_t a, std::int64_t b) { return b < a + slice; }) == offsets.end();
}

/// Slices that may overlap are combined in order: threads own columns then.
template <class T>
void combine_slices(Reduction reduction, std::span<const std::int64_t> offsets, std::int64_t slice, const T* updates,
                    T* out) {
  auto count = static_cast<std::int64_t>(offsets.size());
  auto slices = [&](std::int64_t first, std::int64_t last, std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = first; j < last; ++j) {
      combine(reduction, end - begin, updates + j * slice + begin, out + offsets[static_cast<std::size_t>(j)] + begin);
    }
  };
  if (ascend(offsets, slice)) {
    parallel_for(count, grain_for(slice),
                 [&](std::int64_t first, std::int64_t last) { slices(first, last, 0, slice); });
  } else {
    parallel_for(slice, std::max(kColumns, grain_for(count)),
                 [&](std::int64_t begin, std::int64_t end) { slices(0, count, begin, end); });
  }
}

/// Moving needs only the size of an element; arithmetic its type.
template <class F>
void visit_for(Reduction reduction, DType dtype, const F& f) {
  if (reduction == Reduction::none) return visit_storage(dtype, f);
  visit_numeric(dtype, f);
}

}  // namespace

Reduction reduction_from(const std::string& label, std::string_view name) {
  if (name == "none") return Reduction::none;
  if (name == "add") return Reduction::add;
  if (name == "mul") return Reduction::mul;
  if (name == "max") return Reduction::max;
  if (name == "min") return Reduction::min;
  fail(label, " reduction: got ", printable(name), ", expected none, add, mul, max or min");
}

IndexedElements::IndexedElements(std::span<const std::int64_t> data, std::span<const std::int64_t> indices,
                                 std::size_t axis, bool from_front)
    : from_front_(from_front) {
  Dims data_strides = strides_of(data);
  Dims index_strides = strides_of(indices);
  std::size_t last = data.size() - 1;
  along_ = indices[axis];
  index_step_ = index_strides[axis];
  extent_ = data[axis];
  data_step_ = data_strides[axis];
  for (std::size_t i = 0; i < last; ++i) {
    if (i != axis) outer_.push_back({indices[i], index_strides[i], data_strides[i]});
  }
  if (axis != last) {
    columns_ = indices[last];
    width_ = std::max<std::int64_t>(1, std::min(columns_, kColumns));
    pieces_ = std::max<std::int64_t>(1, (columns_ + width_ - 1) / width_);
    outer_.push_back({pieces_, width_, width_});
  }
  ensure(outer_.size() <= kMaxLoops, "indexing of a tensor of rank ", data.size());
  for (const CopyLoop& loop : outer_) items_ *= loop.extent;
  if (along_ == 0 || columns_ == 0) items_ = 0;
}

IndexedSlices::IndexedSlices(std::span<const std::int64_t> data, std::span<const std::int64_t> indices,
                             std::size_t batch_dims, bool from_front)
    : from_front_(from_front) {
  auto width = static_cast<std::size_t>(indices.back());
  Dims strides = strides_of(data);
  for (std::size_t i = 0; i < width; ++i) {
    extents_.push_back(data[batch_dims + i]);
    strides_.push_back(strides[batch_dims + i]);
  }
  batch_stride_ = product(data, batch_dims, data.size());
  per_batch_ = product(indices, batch_dims, indices.size() - 1);
  count_ = product(indices, 0, indices.size() - 1);
  slice_ = product(data, batch_dims + width, data.size());
}

void IndexedSlices::offsets(const std::string& label, DType index_type, const void* indices, std::int64_t* out) const {
  auto width = static_cast<std::int64_t>(extents_.size());
  parallel_for(count_, grain_for(4 * width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t j = begin; j < end; ++j) {
      std::int64_t offset = j / per_batch_ * batch_stride_;
      for (std::int64_t k = 0; k < width; ++k) {
        std::int64_t p = j * width + k;
        auto axis = static_cast<std::size_t>(k);
        const std::int64_t index = read_index(index_type, indices, p);
        offset += checked_index(label, index, p, extents_[axis], from_front_) * strides_[axis];
      }
      out[j] = offset;
    }
  });
}

void gather_slices(DType dtype, std::span<const std::int64_t> offsets, std::int64_t slice, const void* data,
                   void* out) {
  visit_storage(dtype, [&]<class T>() {
    const T* from = static_cast<const T*>(data);
    T* to = static_cast<T*>(out);
    parallel_for(std::ssize(offsets), grain_for(slice), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t j = begin; j < end; ++j) {
        std::copy_n(from + offsets[static_cast<std::size_t>(j)], slice, to + j * slice);
      }
    });
  });
}

void scatter_slices(DType dtype, Reduction reduction, std::span<const std::int64_t> offsets, std::int64_t slice,
                    const void* updates, void* out) {
  visit_for(reduction, dtype, [&]<class T>() {
    combine_slices(reduction, offsets, slice, static_cast<const T*>(updates), static_cast<T*>(out));
  });
}

void scatter_elements(const std::string& label, DType dtype, Reduction reduction, const IndexedElements& where,
                      DType index_type, const void* indices, const void* updates, void* out) {
  visit_for(reduction, dtype, [&]<class T>() {
    const T* from = static_cast<const T*>(updates);
    T* to = static_cast<T*>(out);
    where.for_each(label, index_type, indices, [&](std::int64_t position, std::int64_t offset) {
      if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, Bytes16>) {
        to[offset] = from[position];
      } else {
        to[offset] = combined(reduction, to[offset], from[position]);
      }
    });
  });
}

}  // namespace backpass::kernels
