// Cutting tensors along an axis and putting them together again, for any
// element type that fills whole bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backpass/tensor.hpp"

namespace backpass {

/// A handle that stays valid: the tensor itself when someone keeps its memory
/// alive, else a copy.
Tensor owned(const Tensor& tensor);
/// The same for whatever flows along an edge.
RuntimeValue owned(const RuntimeValue& value);

/// A deep copy.
Tensor copied(const Tensor& tensor);

/// Elements [begin, begin + count) along `axis`, copied.
Tensor take(const Tensor& tensor, std::size_t axis, std::int64_t begin, std::int64_t count);

/// Element `index` along `axis`, with that axis removed, copied.
Tensor pick(const Tensor& tensor, std::size_t axis, std::int64_t index);

/// The parts, one after the other along `axis`. InvalidInput unless they agree
/// in type and in all other extents.
Tensor joined(std::span<const Tensor> parts, std::size_t axis);

/// The parts along a new axis at position `axis`.
Tensor stacked(std::span<const Tensor> parts, std::size_t axis);

/// Writes zeros (empty strings).
void fill_zero(Tensor& tensor);

}  // namespace backpass
