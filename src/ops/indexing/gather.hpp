// What Gather's nodes say beyond ONNX.
#pragma once

#include <string_view>

namespace backpass {

/// Attribute of a Gather whose indices count from the front alone: a negative one is an error, as in torch's embedding,
/// where ONNX counts it from the end. Names that begin so are free for tools, and others pass over them.
inline constexpr std::string_view kIndicesFromFront = "__indices_from_front";

}  // namespace backpass
