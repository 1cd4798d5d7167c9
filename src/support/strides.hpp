// Arithmetic of extents and strides that are numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "backpass/tensor.hpp"

namespace backpass {

/// numpy broadcasting of numbers. InvalidInput when they do not match.
Dims broadcast_dims(std::span<const std::int64_t> a, std::span<const std::int64_t> b);

/// Row-major strides in elements.
Dims strides_of(std::span<const std::int64_t> dims);

/// Strides that walk a tensor of shape `from` as if it had shape `to` (0 along broadcast axes).
Dims broadcast_strides(std::span<const std::int64_t> from, std::span<const std::int64_t> to);

/// product of dims[begin, end)
std::int64_t product(std::span<const std::int64_t> dims, std::size_t begin, std::size_t end);

}  // namespace backpass
