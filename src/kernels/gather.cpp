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
      std::int64_t index = checked_index(label, static_cast<std::int64_t>(indices[j]), j, s.extent, s.from_front);
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

/// Each block is added up by one thread, in the order of the indices.
template <class T, class I>
void add_narrow_rows(const GatherShape& s, const T* updates, const I* indices, T* out) {
  parallel_for(s.outer * s.extent * s.inner, 1 << 16,
               [&](std::int64_t begin, std::int64_t end) { std::fill(out + begin, out + end, T(0)); });
  parallel_for(s.outer, grain_for(s.count * s.inner), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t o = begin; o < end; ++o) {
      T* block = out + o * s.extent * s.inner;
      const T* from = updates + o * s.count * s.inner;
      for (std::int64_t j = 0; j < s.count; ++j) {
        auto index = static_cast<std::int64_t>(indices[j]);
        T* row = block + (index < 0 ? index + s.extent : index) * s.inner;
        for (std::int64_t k = 0; k < s.inner; ++k) row[k] += from[j * s.inner + k];
      }
    }
  });
}

/// Which updates each row gets, in order: first[row], then next[j] after j; -1 ends.
struct UpdateLists {
  std::int64_t* first;
  std::int64_t* next;

  template <class I>
  UpdateLists(const std::string& label, const GatherShape& s, const I* indices, std::int64_t* room)
      : first(room), next(room + s.extent) {
    std::fill_n(first, s.extent, -1);
    for (std::int64_t j = s.count; j-- > 0;) {
      const std::int64_t row = checked_index(label, static_cast<std::int64_t>(indices[j]), j, s.extent);
      next[j] = first[row];
      first[row] = j;
    }
  }
};

/// to = start(to) + from, in blocks of a fixed size, which compilers turn into vectors.
template <class T, class Start>
void add_run(const T* __restrict from, std::int64_t n, T* __restrict to, const Start& start) {
  constexpr std::int64_t kBlock = 32;
  std::int64_t k = 0;
  for (; k + kBlock <= n; k += kBlock) {
    for (std::int64_t i = 0; i < kBlock; ++i) to[k + i] = start(to[k + i]) + from[k + i];
  }
  for (; k < n; ++k) to[k] = start(to[k]) + from[k];
}

/// Rows of a sum, cut into strips of columns: few rows into more of them, for threads to share.
struct Strips {
  std::int64_t inner, extent, width, per_row;

  explicit Strips(const GatherShape& s)
      : inner(s.inner),
        extent(s.extent),
        width(std::min<std::int64_t>(s.inner, s.extent < 32 ? 64 : 512)),
        per_row((s.inner + width - 1) / width) {}

  std::int64_t column(std::int64_t strip) const { return strip % per_row * width; }
  std::int64_t row(std::int64_t strip) const { return strip / per_row % extent; }
  /// Where it begins, from the beginning of all rows on.
  std::int64_t offset(std::int64_t strip) const { return strip / per_row * inner + column(strip); }
};

/// Every row is written once; those that get nothing, which are most of a vocabulary's, many at a time.
template <class T>
void add_wide_rows(const GatherShape& s, const T* updates, const UpdateLists& lists, T* out) {
  const Strips strips(s);
  const std::int64_t work = strips.width * (1 + s.count / std::max<std::int64_t>(s.extent, 1));
  parallel_for(s.outer * s.extent * strips.per_row, grain_for(work), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t strip = begin; strip < end; ++strip) {
      const std::int64_t first_empty = strip;
      while (strip < end && lists.first[strips.row(strip)] < 0) ++strip;
      std::fill(out + strips.offset(first_empty), out + strips.offset(strip), T(0));
      if (strip == end) break;
      const std::int64_t column = strips.column(strip);
      const std::int64_t n = std::min(strips.width, s.inner - column);
      const T* from = updates + strip / strips.per_row / s.extent * s.count * s.inner + column;
      T* to = out + strips.offset(strip);
      std::int64_t j = lists.first[strips.row(strip)];
      add_run(from + j * s.inner, n, to, [](T) { return T(0); });  // not a copy: -0 becomes 0
      while ((j = lists.next[j]) >= 0) add_run(from + j * s.inner, n, to, [](T sum) { return sum; });
    }
  });
}

constexpr std::int64_t kWide = 16;

template <class T, class I>
void add_rows(const std::string& label, const GatherShape& s, const T* updates, const I* indices, T* out,
              std::int64_t* room) {
  if (s.inner >= kWide) return add_wide_rows(s, updates, UpdateLists(label, s, indices, room), out);
  for (std::int64_t j = 0; j < s.count; ++j) checked_index(label, static_cast<std::int64_t>(indices[j]), j, s.extent);
  add_narrow_rows(s, updates, indices, out);
}

/// Threads own columns: equal indices meet in the order they are given.
template <class T, class I>
void add_to_rows(const std::string& label, const GatherShape& s, const T* updates, const I* indices, T* out) {
  for (std::int64_t j = 0; j < s.count; ++j) checked_index(label, static_cast<std::int64_t>(indices[j]), j, s.extent);
  constexpr std::int64_t kColumns = 128;
  const std::int64_t strips = (s.inner + kColumns - 1) / kColumns;
  parallel_for(s.outer * strips, grain_for(kColumns * s.count), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int64_t block = item / strips;
      const std::int64_t column = (item % strips) * kColumns;
      const std::int64_t n = std::min(kColumns, s.inner - column);
      for (std::int64_t j = 0; j < s.count; ++j) {
        const std::int64_t row = checked_index(label, static_cast<std::int64_t>(indices[j]), j, s.extent);
        add_run(updates + (block * s.count + j) * s.inner + column, n,
                out + (block * s.extent + row) * s.inner + column, [](T sum) { return sum; });
      }
    }
  });
}

template <class T, class I>
void put_rows(const std::string& label, const GatherShape& s, const T* rows, const I* indices, T* out,
              std::int64_t* room) {
  std::fill_n(room, s.extent, -1);
  for (std::int64_t j = 0; j < s.count; ++j) {
    room[checked_index(label, static_cast<std::int64_t>(indices[j]), j, s.extent)] = j;
  }
  parallel_for(s.extent, grain_for(s.inner), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      if (room[row] < 0) {
        std::fill_n(out + row * s.inner, s.inner, T{});
      } else {
        std::copy_n(rows + room[row] * s.inner, s.inner, out + row * s.inner);
      }
    }
  });
}

}  // namespace

void bad_index(const std::string& label, std::int64_t index, std::int64_t position, std::int64_t extent,
               std::int64_t lowest) {
  fail(label, " index at position ", position, ": got ", index, ", expected one in [", lowest, ", ", extent, ")");
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
                 const void* indices, void* out, std::int64_t* room) {
  visit_index(index_type, [&]<class I>() {
    visit_real(dtype, [&]<class T>() {
      add_rows(label, shape, static_cast<const T*>(updates), static_cast<const I*>(indices), static_cast<T*>(out),
               room);
    });
  });
}

void add_gathered(const std::string& label, DType dtype, DType index_type, const GatherShape& shape,
                  const void* updates, const void* indices, void* out) {
  visit_index(index_type, [&]<class I>() {
    visit_real(dtype, [&]<class T>() {
      add_to_rows(label, shape, static_cast<const T*>(updates), static_cast<const I*>(indices), static_cast<T*>(out));
    });
  });
}

void put_rows(const std::string& label, DType dtype, DType index_type, const GatherShape& shape, const void* rows,
              const void* indices, void* out, std::int64_t* room) {
  visit_index(index_type, [&]<class I>() {
    visit_storage(dtype, [&]<class T>() {
      put_rows(label, shape, static_cast<const T*>(rows), static_cast<const I*>(indices), static_cast<T*>(out), room);
    });
  });
}

}  // namespace backpass::kernels
