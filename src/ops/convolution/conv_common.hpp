// What Conv and its relatives share: shape rule and sizes.
#pragma once

#include "graph/op.hpp"
#include "kernels/conv.hpp"

namespace backpass {

/// Shape of the result of convolving x [N, C, ...] with w [M, C/group, ...]; checks everything the sizes rely on.
Shape conv_shape(InferContext&, const Shape& x, const Shape& w);

/// Checks that an optional bias has one element per output channel.
void check_conv_bias(InferContext&, std::size_t input, const Dim& channels);

/// Types of dX, dW and dB (`channels` elements) from inputs dY, X, W.
void infer_conv_gradient(InferContext&, const Dim& channels);

/// The kernel's extents, from the weights [.., .., k...] and, when given, the attribute kernel_shape.
std::vector<std::int64_t> kernel_extents(const Node&, std::span<const std::int64_t> weights);

/// Sizes once all extents are numbers.
ConvGeometry conv_geometry(const Node&, const Dims& x, const Dims& w, const Dims& y);

}  // namespace backpass
