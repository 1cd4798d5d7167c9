// Axes of a reduction: attributes keepdims and noop_with_empty_axes, optional input 1 `axes`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "graph/builder.hpp"
#include "graph/op.hpp"

namespace backpass {

/// One flag per axis. InvalidInput on an axis that is out of range or named twice.
std::vector<bool> reduced_axes(const Node& node, std::size_t rank, std::span<const std::int64_t> axes);

/// Shape rule of the Reduce family.
void infer_reduce(InferContext& c);

/// The flags at preparation, when the contents of input 1 are known.
std::vector<bool> reduced_axes(const PrepareContext& c);

/// Moves the attribute `axes` of older opsets to input 1.
void axes_attribute_to_input(Builder& b, Node& node);

}  // namespace backpass
