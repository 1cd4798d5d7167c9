// Gradient nodes of ai.onnx.preview.training: `dy_da, dy_db = Gradient<xs = ["a", "b"], y = "y">(a, b)`.
//
// They name the value to be differentiated instead of reading it. While names are resolved it becomes one more input,
// last; once types are known the node gives way to the nodes that compute the derivatives.
//
// Likewise `da, db = backpass.VectorJacobianProduct(a, b, y, dy)`, which reads y and where its gradient begins.
#pragma once

#include <string>

#include "graph/graph.hpp"
#include "onnx_io/proto.hpp"

namespace backpass {

bool is_gradient_node(const onnx_io::NodeProto& node);

/// Name of the value to be differentiated. InvalidInput unless the inputs begin with the tensors that xs names:
/// derivatives are taken where the graph itself is evaluated.
std::string differentiated_name(const onnx_io::NodeProto& node);

/// Replaces the requests in the main graph: Gradient nodes, whose last input is what they differentiate, and
/// VectorJacobianProduct.
void replace_gradient_nodes(Graph& graph);

}  // namespace backpass
