// How large a model becomes: a few functions that call each other can stand for any number of nodes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "onnx_io/proto.hpp"

namespace backpass {

using FunctionKey = std::tuple<std::string, std::string, std::string>;  ///< domain, name, overload
using Functions = std::map<FunctionKey, const onnx_io::FunctionProto*>;

/// Nodes of the graph and its subgraphs once every function call is inlined. Counting stops beyond `limit`. A function
/// that calls itself counts once: the importer refuses it.
std::int64_t inlined_size(const onnx_io::GraphProto& graph, const Functions& functions, std::int64_t limit);

}  // namespace backpass
