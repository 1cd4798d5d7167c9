// Element-wise and slice-wise reads and writes at computed positions: the loops of GatherElements, ScatterElements,
// GatherND, ScatterND and their gradients.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "backpass/tensor.hpp"
#include "kernels/gather.hpp"
#include "kernels/strided_copy.hpp"
#include "support/parallel.hpp"

namespace backpass::kernels {

enum class Reduction : std::uint8_t { none, add, mul, max, min };

/// "none", "add", ...; InvalidInput opening with `label` for anything else.
Reduction reduction_from(const std::string& label, std::string_view name);

template <class T>
T combined(Reduction reduction, T old, T update) {
  switch (reduction) {
    case Reduction::add:
      return static_cast<T>(old + update);
    case Reduction::mul:
      return static_cast<T>(old * update);
    case Reduction::max:
      return old > update || old != old ? old : update;  // NaN stays
    case Reduction::min:
      return old < update || old != old ? old : update;
    default:
      return update;
  }
}

inline std::int64_t read_index(DType index_type, const void* indices, std::int64_t i) {
  return index_type == DType::int32 ? static_cast<const std::int32_t*>(indices)[i]
                                    : static_cast<const std::int64_t*>(indices)[i];
}

/// Positions in `data` that an index tensor of the same rank names along one axis. All positions that differ in another
/// axis are independent, so threads own lines along the axis and every line is walked in order.
class IndexedElements {
 public:
  /// `from_front`: no index is negative.
  IndexedElements(std::span<const std::int64_t> data, std::span<const std::int64_t> indices, std::size_t axis,
                  bool from_front = false);

  /// visit(position in the indices, offset in the data)
  template <class Visit>
  void for_each(const std::string& label, DType index_type, const void* indices, const Visit& visit) const {
    parallel_for(items_, grain_for(along_ * width_), [&](std::int64_t begin, std::int64_t end) {
      std::int64_t item = begin;
      for_rows(outer_, begin, end, [&](std::int64_t position, std::int64_t base) {
        std::int64_t columns = std::min(width_, columns_ - (item++ % pieces_) * width_);
        for (std::int64_t a = 0; a < along_; ++a) {
          for (std::int64_t j = 0; j < columns; ++j) {
            const std::int64_t p = position + a * index_step_ + j;
            const std::int64_t index = read_index(index_type, indices, p);
            visit(p, base + checked_index(label, index, p, extent_, from_front_) * data_step_ + j);
          }
        }
      });
    });
  }

 private:
  std::vector<CopyLoop> outer_;  ///< `from` moves in the indices, `to` in the data
  std::int64_t items_ = 1;
  std::int64_t along_ = 1;  ///< extent of the indices along the axis
  std::int64_t index_step_ = 1;
  std::int64_t extent_ = 1;  ///< of the data along the axis
  std::int64_t data_step_ = 1;
  std::int64_t columns_ = 1;  ///< extent of the last axis when it is not the indexed one
  std::int64_t width_ = 1;
  std::int64_t pieces_ = 1;
  bool from_front_ = false;
};

/// Slices of a tensor named by tuples of indices into its leading axes (after `batch_dims` axes shared with the
/// indices).
class IndexedSlices {
 public:
  IndexedSlices(std::span<const std::int64_t> data, std::span<const std::int64_t> indices, std::size_t batch_dims,
                bool from_front = false);

  std::int64_t count() const { return count_; }
  std::int64_t slice() const { return slice_; }

  /// Offset of each slice in the data, in elements; every index is checked.
  void offsets(const std::string& label, DType index_type, const void* indices, std::int64_t* out) const;

 private:
  Dims extents_;  ///< of the indexed axes
  Dims strides_;
  std::int64_t batch_stride_ = 0;
  std::int64_t per_batch_ = 1;  ///< tuples of one batch entry
  std::int64_t count_ = 1;
  std::int64_t slice_ = 1;
  bool from_front_ = false;
};

/// out[j] = slice at offsets[j] of data
void gather_slices(DType dtype, std::span<const std::int64_t> offsets, std::int64_t slice, const void* data, void* out);

/// Combines updates[j] into the slice at offsets[j] of out, in the order of j whatever the number of threads.
void scatter_slices(DType dtype, Reduction reduction, std::span<const std::int64_t> offsets, std::int64_t slice,
                    const void* updates, void* out);

/// Combines single elements along an axis, in the order of the indices.
void scatter_elements(const std::string& label, DType dtype, Reduction reduction, const IndexedElements& where,
                      DType index_type, const void* indices, const void* updates, void* out);

}  // namespace backpass::kernels
