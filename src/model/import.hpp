// ModelProto -> Graph: names resolved, functions inlined, older opsets lifted, types inferred.
#pragma once

#include <memory>
#include <vector>

#include "backpass/problem.hpp"
#include "graph/graph.hpp"
#include "onnx_io/proto.hpp"

namespace backpass {

/// Opsets of the default domain that can be read.
constexpr std::int64_t kOldestOpset = 1;
constexpr std::int64_t kNewestOpset = 28;

struct Import {
  std::unique_ptr<Graph> graph;   ///< null when the structure is too broken to build one
  std::vector<Problem> problems;  ///< everything found wrong; the graph is only usable when empty
};

/// Builds the graph. Every problem is collected: duplicate and undefined names, cycles, recursive functions, unknown
/// operators and opsets, shapes that do not fit.
Import import_model(const onnx_io::ModelProto& model);

/// The graph as the file has it, for passes whose result goes on as a file: nodes stay in their opset, calls of
/// functions stay calls, only inputs, outputs and constants have types. Throws what import_model collects about names.
std::unique_ptr<Graph> import_as_written(const onnx_io::ModelProto& model);

/// The tensor's elements as a Tensor: shared with the file when their address is aligned, else copied.
Tensor to_tensor(const onnx_io::TensorProto& proto);

/// `declared` types of inputs and outputs as Backpass sees them; extents without a name get one made from `name`.
Type to_type(const onnx_io::TypeProto& proto, const std::string& name);

}  // namespace backpass
