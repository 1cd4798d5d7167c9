// A float32 copy, in scratch memory, of a tensor that is kept as bfloat16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/op.hpp"
#include "support/convert.hpp"

namespace backpass {

class WideCopy {
 public:
  WideCopy(PrepareContext& c, std::int64_t count)
      : count_(count), offset_(c.reserve(static_cast<std::size_t>(count) * sizeof(float))) {}

  float* at(std::byte* scratch) const { return reinterpret_cast<float*>(scratch + offset_); }
  /// Fills the copy.
  const float* widen(const void* from, std::byte* scratch) const {
    Conversion(DType::bfloat16, DType::float32).parallel(from, at(scratch), count_);
    return at(scratch);
  }
  /// Rounds the copy into the tensor.
  void narrow(std::byte* scratch, void* to) const {
    Conversion(DType::float32, DType::bfloat16).parallel(at(scratch), to, count_);
  }

 private:
  std::int64_t count_;
  std::size_t offset_;
};

}  // namespace backpass
