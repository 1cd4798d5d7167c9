// What nodes that read or write by index say beyond ONNX.
#pragma once

#include <string_view>

#include "graph/graph.hpp"

namespace backpass {

/// Attribute of Gather, GatherElements, ScatterElements and ScatterND whose indices count from the front alone: a
/// negative one is an error, as in torch's embedding, gather and scatter, where ONNX counts it from the end. Names that
/// begin so are free for tools, and others pass over them.
inline constexpr std::string_view kIndicesFromFront = "__indices_from_front";

inline bool counts_from_front(const Node& node) { return node.attr_int(kIndicesFromFront, 0) != 0; }

}  // namespace backpass
