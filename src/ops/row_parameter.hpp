// A scale or bias that broadcasts to the tensor being normalised. In nearly all models it has the shape of one row and
// is used as it stands; any other shape is spread out to the whole tensor first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/op.hpp"

namespace backpass {

struct RowParameter {
  bool present = false;
  std::int64_t stride = 0;  ///< elements from one row's values to the next row's
  std::size_t input = 0;
  std::size_t scratch = 0;
  Dims dims, strides;  ///< of the whole tensor, and how the parameter walks it; empty when used as it stands

  /// Values for row 0; call once per run.
  template <class T>
  const T* values(const KernelArgs& a) const;
};

/// Input `input` (may be absent) against input 0, whose rows start at `axis`.
RowParameter row_parameter(PrepareContext& c, std::size_t input, std::size_t axis);

/// Checks that input `input` broadcasts to input 0.
void check_row_parameter(InferContext& c, std::size_t input);

/// Copies `from` into all of `to` (extents `dims`), walking `from` by `strides`.
template <class T>
void spread(const T* from, T* to, const Dims& dims, const Dims& strides);

template <class T>
const T* RowParameter::values(const KernelArgs& a) const {
  if (!present) return nullptr;
  if (dims.empty()) return a.in<T>(input);
  T* whole = reinterpret_cast<T*>(a.scratch + scratch);
  spread(a.in<T>(input), whole, dims, strides);
  return whole;
}

extern template void spread(const float*, float*, const Dims&, const Dims&);
extern template void spread(const double*, double*, const Dims&, const Dims&);

}  // namespace backpass
