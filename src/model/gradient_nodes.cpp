#include "model/gradient_nodes.hpp"

#include <algorithm>
#include <array>

#include "gradient/reverse.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

constexpr std::string_view kDomain = "ai.onnx.preview.training";

bool is_product(const Node& node) { return node.op == "VectorJacobianProduct" && node.domain == "backpass"; }

const onnx_io::AttributeProto* attribute(const onnx_io::NodeProto& node, std::string_view name) {
  auto it = std::find_if(node.attribute.begin(), node.attribute.end(), [&](const auto& a) { return a.name == name; });
  return it == node.attribute.end() ? nullptr : &*it;
}

}  // namespace

bool is_gradient_node(const onnx_io::NodeProto& node) { return node.op_type == "Gradient" && node.domain == kDomain; }

std::string differentiated_name(const onnx_io::NodeProto& node) {
  const onnx_io::AttributeProto* xs = attribute(node, "xs");
  const onnx_io::AttributeProto* y = attribute(node, "y");
  if (xs == nullptr || y == nullptr) fail("[Gradient '", node.name, "'] attributes: expected xs and y");
  const bool fits = node.input.size() >= xs->strings.size() && node.output.size() <= xs->strings.size() &&
                    std::equal(xs->strings.begin(), xs->strings.end(), node.input.begin());
  if (!fits) {
    fail("[Gradient '", node.name,
         "'] inputs: expected the tensors that xs names, in order; feed the values at which "
         "to differentiate to the graph's own inputs");
  }
  return y->s;
}

void replace_gradient_nodes(Graph& graph) {
  const std::vector<Node*> nodes = graph.nodes();
  for (Node* node : nodes) {
    if (node->def == nullptr || !node->def->is_gradient_request) continue;
    const bool seeded = is_product(*node);
    const std::array<Value*, 1> seed = {seeded ? node->inputs.back() : nullptr};
    const std::array<Value*, 1> y = {seeded ? node->inputs[node->inputs.size() - 2] : node->inputs.back()};
    std::vector<Value*> xs(node->inputs.begin(),
                           node->inputs.begin() + static_cast<std::ptrdiff_t>(node->outputs.size()));
    std::vector<Value*> gradients = add_gradients(graph, y, seed, xs);
    for (std::size_t k = 0; k < gradients.size(); ++k) {
      if (node->outputs[k] != nullptr) graph.replace_uses(node->outputs[k], gradients[k]);
    }
    graph.remove_node(node);
    graph.sort_topologically();  // what comes next may differentiate what was just added
  }
}

}  // namespace backpass
