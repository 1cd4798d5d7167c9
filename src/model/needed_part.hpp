// The part of a model that some of its values depend on.
#pragma once

#include <set>
#include <span>
#include <string>

#include "onnx_io/proto.hpp"

namespace backpass {

using NameSet = std::set<std::string, std::less<>>;

/// Takes everything out of the graph that `outputs`, results of its nodes, do not depend on: nodes, initializers,
/// inputs, descriptions. The outputs it declares stay as they are. Returns every name that what is left reads, and the
/// outputs. InvalidInput, naming them all, for outputs that do not exist; `what` opens the message.
NameSet keep_needed(onnx_io::GraphProto& graph, std::span<const std::string> outputs, const char* what);

}  // namespace backpass
