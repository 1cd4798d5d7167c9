// Reading and adding rows of elements by index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "backpass/dtype.hpp"
#include "backpass/error.hpp"

namespace backpass::kernels {

/// `lowest`: the least index that would have been right.
[[noreturn]] void bad_index(const std::string& label, std::int64_t index, std::int64_t position, std::int64_t extent,
                            std::int64_t lowest);

/// An index in [-extent, extent), or [0, extent) where indices count from the front alone, counted from the front;
/// anything else is an error that names the position.
inline std::int64_t checked_index(const std::string& label, std::int64_t index, std::int64_t position,
                                  std::int64_t extent, bool from_front = false) {
  std::int64_t i = index < 0 && !from_front ? index + extent : index;
  if (i < 0 || i >= extent) [[unlikely]] {
    bad_index(label, index, position, extent, from_front ? 0 : -extent);
  }
  return i;
}

/// A tensor seen as [outer, extent, inner], of which `count` slices along the middle axis are read or written.
struct GatherShape {
  std::int64_t outer = 1;
  std::int64_t extent = 1;
  std::int64_t inner = 1;
  std::int64_t count = 0;
  bool from_front = false;  ///< no index is negative
};

/// out[o, j, :] = data[o, indices[j], :]
void gather(const std::string& label, DType dtype, DType index_type, const GatherShape& shape, const void* data,
            const void* indices, void* out);

/// out = 0; out[o, indices[j], :] += updates[o, j, :], in the order of j whatever the number of threads. Real types.
/// `room` is scratch memory for extent + count numbers.
void gather_grad(const std::string& label, DType dtype, DType index_type, const GatherShape& shape, const void* updates,
                 const void* indices, void* out, std::int64_t* room);

/// out[o, indices[j], :] += updates[o, j, :], in the order of j whatever the number of threads. Real types.
void add_gathered(const std::string& label, DType dtype, DType index_type, const GatherShape& shape,
                  const void* updates, const void* indices, void* out);

/// out = 0; out[indices[j], :] = rows[j, :], of equal indices the last. One block; `room` as for gather_grad.
void put_rows(const std::string& label, DType dtype, DType index_type, const GatherShape& shape, const void* rows,
              const void* indices, void* out, std::int64_t* room);

}  // namespace backpass::kernels
