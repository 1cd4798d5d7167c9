// Gradient (ai.onnx.preview.training): a request to differentiate, carried out when a model is imported. See
// model/gradient_nodes.hpp.
#include "graph/op.hpp"

namespace backpass {
namespace {

void infer(InferContext& c) {
  c.require(c.node.outputs.size() < c.input_count(), "got ", c.node.outputs.size(), " outputs for ",
            c.input_count() - 1, " inputs, expected one per entry of xs");
  for (std::size_t i = 0; i < c.node.outputs.size(); ++i) c.set_type(i, c.type(i));
}

void compute(ComputeContext& c) {
  fail<Unsupported>(c.node.label(),
                    " inside a subgraph: got a request to differentiate there, expected it in the main "
                    "graph");
}

const Register gradient{{.name = "Gradient",
                         .domain = "ai.onnx.preview.training",
                         .doc = "Derivatives of y with respect to xs, by reverse mode when the model is read.",
                         .inputs = {1, -1},
                         .outputs = {1, -1},
                         .types = types::floats,
                         .infer = infer,
                         .compute = compute}};

}  // namespace
}  // namespace backpass
