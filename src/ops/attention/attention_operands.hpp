// Rows of heads as the innermost loops of matrix product read them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/gemm_simd.hpp"
#include "kernels/thread_buffer.hpp"
#include "ops/attention/attention_rows.hpp"

namespace backpass {

template <class T>
struct HeadRows {
  const T* data;
  std::int64_t stride;
  std::int64_t count;
  std::int64_t length;

  HeadRows part(std::int64_t begin, std::int64_t size) const { return {data + begin * stride, stride, size, length}; }
};

/// Rows that the next head works on, fetched one by one while the present one computes: heads lie side by side, so that
/// each begins with rows that no cache near by holds, and whose distance nothing guesses.
template <class T>
class RowsAhead {
 public:
  void add(const HeadRows<T>& rows) { soon_[count_++] = rows; }

  /// The next row of each.
  void fetch() {
    constexpr std::int64_t kLine = 64 / sizeof(T);
    for (std::size_t s = 0; s < count_; ++s) {
      if (row_ >= soon_[s].count) continue;
      const T* row = soon_[s].data + row_ * soon_[s].stride;
      for (std::int64_t j = 0; j < soon_[s].length; j += kLine) __builtin_prefetch(row + j);
    }
    ++row_;
  }

 private:
  std::array<HeadRows<T>, 4> soon_{};
  std::size_t count_ = 0;
  std::int64_t row_ = 0;
};

/// Elements from row to row of scores for so many keys: whole cache lines, but no power of two.
inline std::int64_t score_stride(std::int64_t keys) {
  constexpr std::int64_t kLine = 16;
  return (keys + kLine - 1) / kLine * kLine + kLine;
}

/// As a left factor: rows far apart fall into the same few sets of the first-level cache and evict each other.
template <int kSlot, class T>
HeadRows<T> gathered(const HeadRows<T>& rows) {
  if (rows.stride <= rows.length) return rows;
  T* to = thread_buffer<T, kSlot>(rows.count * rows.length);
  copy_rows(rows.data, rows.stride, rows.count, rows.length, to, rows.length, rows.length);
  return {to, rows.length, rows.count, rows.length};
}

/// Columns of a right factor in whole panels.
template <class T>
std::int64_t padded_columns(std::int64_t columns) {
  const std::int64_t panel = gemm_kernels<T>().panel;
  return (columns + panel - 1) / panel * panel;
}

/// Panels of the right factor [count, length]. Vectors that hold nothing of the last one are not written: nobody reads
/// them.
template <class T>
void pack_along(const HeadRows<T>& rows, T* out) {
  const GemmKernels<T>& kernels = gemm_kernels<T>();
  const std::int64_t lanes = kernels.panel / kernels.vectors;
  for (std::int64_t j = 0; j < rows.length; j += kernels.panel) {
    const std::int64_t columns = std::min(kernels.panel, rows.length - j);
    const std::int64_t filled = (columns + lanes - 1) / lanes * lanes;
    copy_rows(rows.data + j, rows.stride, rows.count, columns, out + j * rows.count, kernels.panel, filled);
  }
}

template <int kSlot, class T>
const T* packed_along(const HeadRows<T>& rows) {
  T* panels = thread_buffer<T, kSlot>(rows.count * padded_columns<T>(rows.length));
  pack_along(rows, panels);
  return panels;
}

/// Panels of the right factor [length, count].
template <int kSlot, class T>
const T* packed_across(const HeadRows<T>& rows) {
  const GemmKernels<T>& kernels = gemm_kernels<T>();
  T* panels = thread_buffer<T, kSlot>(padded_columns<T>(rows.count) * rows.length);
  kernels.pack(true, rows.length, rows.count, rows.data, rows.stride, panels, rows.length * kernels.panel);
  return panels;
}

}  // namespace backpass
