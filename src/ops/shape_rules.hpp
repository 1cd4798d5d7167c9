// Shape rules that many operators share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/op.hpp"
#include "support/strides.hpp"

namespace backpass::rules {

/// Output 0 has the type and shape of input 0.
void same_as_input(InferContext&);

/// numpy broadcasting of two shapes. A symbol against 1 wins; of two different symbols either could be 1, so the result
/// is a name for whatever it is, unless they only broadcast when they are equal.
Shape broadcast(InferContext&, const Shape& a, const Shape& b);

/// Output 0 = broadcast of all present inputs, dtype of input 0.
void broadcast_inputs(InferContext&);

/// The same with a fixed element type (comparisons give bool).
void broadcast_to_bool(InferContext&);

/// Window arithmetic of convolution and pooling for one axis.
struct Window {
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t dilation = 1;
  std::int64_t pad_begin = 0;
  std::int64_t pad_end = 0;
};

/// Windows of all spatial axes from the usual attributes (kernel_shape or `kernel`, strides, dilations, pads,
/// auto_pad). With auto_pad SAME_* the pads of an axis whose extent is known are resolved; `spatial` are the input
/// extents. Fails with the node's label on a wrong count or a non-positive value.
std::vector<Window> windows(const Node& node, std::span<const std::int64_t> kernel, std::span<const Dim> spatial);

/// Extent of the output along one axis. SAME_* gives ceil(in/stride), ceil_mode rounds up (dropping a window that would
/// start in the end padding).
Dim window_output(const Node& node, const Dim& in, const Window& window, bool ceil_mode);

}  // namespace backpass::rules
