#include "kernels/gather.hpp"

#include <algorithm>

#include "support/parallel.hpp"
#include "support/visit.hpp"

namespace backpass::kernels {
namespace {

template <class T, class I>
void gather_rows(const std::string& label, const GatherShape& s, const T* data, const I* indices, T* out) {
  parallel_for(s.outer * s.count, grain_for(s.inner), [&](std::int64_t begin, std::int64_t end) {
    std::int64_t o = begin / s.count;
    std::int64_t j = begin % s.count;
    for (std::int64_t row = begin; row < end; ++row) {
      std::int64_t index = checked_index(label, static_cast<std::int64_t>(indices[j]), j, s.extent);
      const T* from = data + (o * s.extent + index) * s.inner;
      if (s.inner == 1) {
        out[row] = *from;
      } else {
        std::copy_n(from, s.inner, out + row * s.inner);
      }
      if (++j == s.count) {
        j = 0;
        ++o;
      }
    }
  });
}

/// Threads own columns, so that every sum runs in the order of the indices.
template <class T, class I>
void add_rows(const std::string& label, const GatherShape& s, const T* updates, const I* indices, T* out) {
  constexpr std::int64_t kColumns = 64;
  for (std::int64_t j = 0; j < s.count; ++j) checked_index(label, static_cast<std::int64_t>(indices[j]), j, s.extent);
  if (s.inner == 0) return;
  std::int64_t width = std::min(s.inner, kColumns);
  std::int64_t strips = (s.inner + width - 1) / width;
  parallel_for(s.outer * strips, grain_for(s.count * width), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      std::int64_t o = item / strips;
      std::int64_t first = (item % strips) * width;
      std::int64_t last = std::min(s.inner, first + width);
      T* block = out + o * s.extent * s.inner;
      const T* from = updates + o * s.count * s.inner;
      for (std::int64_t j = 0; j < s.count; ++j) {
        auto index = static_cast<std::int64_t>(indices[j]);
        T* row = block + (index < 0 ? index + s.extent : index) * s.inner;
        for (std::int64_t k = first; k < last; ++k) row[k] += from[j * s.inner + k];
      }
    }
  });
}

}  // namespace

void bad_index(const std::string& label, std::int64_t index, std::int64_t position, std::int64_t extent) {
  fail(label, " index at position ", position, ": got ", index, ", expected one in [", -extent, ", ", extent, ")");
}

void gather(const std::string& label, DType dtype, DType index_type, const GatherShape& shape, const void* data,
            const void* indices, void* out) {
  visit_index(index_type, [&]<class I>() {
    visit_storage(dtype, [&]<class T>() {
      gather_rows(label, shape, static_cast<const T*>(data), static_cast<const I*>(indices), static_cast<T*>(out));
    });
  });
}

void gather_grad(const std::string& label, DType dtype, DType index_type, const GatherShape& shape, const void* updates,
                 const void* indices, void* out) {
  visit_index(index_type, [&]<class I>() {
    visit_real(dtype, [&]<class T>() {
      T* to = static_cast<T*>(out);
      parallel_for(shape.outer * shape.extent * shape.inner, 1 << 16,
                   [&](std::int64_t begin, std::int64_t end) { std::fill(to + begin, to + end, T(0)); });
      add_rows(label, shape, static_cast<const T*>(updates), static_cast<const I*>(indices), to);
    });
  });
}

}  // namespace backpass::kernels
