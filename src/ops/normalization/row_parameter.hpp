// A scale or bias that broadcasts to the tensor being normalised. In nearly all models it has the shape of one row and
// is used as it stands; any other shape is spread out to the whole tensor first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "graph/op.hpp"
#include "kernels/strided_copy.hpp"

namespace backpass {

struct RowParameter {
  bool present = false;
  std::int64_t stride = 0;  ///< elements from one row's values to the next row's
  std::size_t input = 0;
  std::size_t scratch = 0;
  std::optional<kernels::StridedCopy> spread;

  /// Values for row 0 (null when the input is omitted); call once per run.
  template <class T>
  const T* values(const KernelArgs& a) const {
    if (!present || !spread) return present ? a.in<T>(input) : nullptr;
    (*spread)(a.inputs[input], a.scratch + scratch);
    return reinterpret_cast<const T*>(a.scratch + scratch);
  }
};

/// Input `input` (may be absent) against input 0, whose rows start at `axis`.
RowParameter row_parameter(PrepareContext& c, std::size_t input, std::size_t axis);

/// Checks that input `input` broadcasts to input 0.
void check_row_parameter(InferContext& c, std::size_t input);

}  // namespace backpass
