// Graph -> ModelProto: what passes and gradients made, as a file that any ONNX tool reads.
//
// Nodes are written in Backpass's internal form, which is that of a standard opset: the oldest one in which every
// operator used has that form, or the one asked for if that is newer. What passes leave can be written, read again, and
// gives the same bits; what a plan makes of it (plan/lower.hpp) has no form in a file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.hpp"
#include "onnx_io/proto.hpp"

namespace backpass {

/// Marks the outputs that are gradients (Graph::first_gradient), in their metadata: graphs are laid out for running
/// half by half, and what is read again is to run as it did.
inline constexpr std::string_view kGradientMark = "backpass.gradient";

struct ExportOptions {
  std::int64_t opset = 18;                ///< of the default domain; raised to what the operators need
  std::vector<std::string> output_names;  ///< names of the outputs where they differ from their values'
  bool with_types = true;                 ///< write value_info for every value whose type is known
};

/// Whether export_graph wrote the model.
bool is_ours(const onnx_io::ModelProto& model);

/// InternalBug when the graph is a plan's own copy (OpDef::is_lowered).
onnx_io::ModelProto export_graph(const Graph& graph, const ExportOptions& options = {});

onnx_io::TensorProto to_proto(const Tensor& tensor, const std::string& name);
onnx_io::TypeProto to_proto(const Type& type);

}  // namespace backpass
