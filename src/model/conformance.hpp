// Whether a model is written as the ONNX standard wants it, before anything is made of it: operators that the model's
// opsets have, with the inputs, outputs and attributes they have there. What a runtime would pass over in silence (a
// misspelt attribute leaves the default in force) is said here.
#pragma once

#include <vector>

#include "backpass/problem.hpp"
#include "graph/graph.hpp"
#include "onnx_io/proto.hpp"

namespace backpass {

/// All nodes that differ from the standard, those of subgraphs and functions among them; each is named once.
std::vector<Problem> check_nodes(const onnx_io::ModelProto& model);

/// Declared element types of outputs and inner values, in subgraphs too, against those that follow from the nodes.
/// Wanted before dead nodes are removed, whose results may be declared as well. Declared extents are not compared:
/// exporters leave stale ones behind, and nothing here relies on them.
std::vector<Problem> check_declared_types(const onnx_io::GraphProto& proto, const Graph& graph);

}  // namespace backpass
