// backpass.FunctionGradient: stands behind the nodes of a function that a user registered a gradient for.
//
//   results of the inlined body, arguments of the call -> results
//
// Forward it passes the results through; backward it asks the user's rule for gradients of the arguments and gives the
// body none. Once gradients are there it has no further meaning (see remove_function_gradients).
#include "ops/custom/function_gradient.hpp"

#include "gradient/rule.hpp"
#include "ops/custom/custom_operator.hpp"

namespace backpass {
namespace {

constexpr std::string_view kDomain = "backpass_domain";
constexpr std::string_view kName = "backpass_name";
constexpr std::string_view kResults = "backpass_results";

void infer(InferContext& c) {
  for (std::size_t k = 0; k < c.node.outputs.size(); ++k) {
    if (c.has_output(k)) c.set_type(k, c.type(k));
  }
}

void compute(ComputeContext& c) {
  for (std::size_t k = 0; k < c.node.outputs.size() && k < c.inputs.size(); ++k) c.outputs[k] = c.inputs[k];
}

void gradient(GradientContext& g) {
  const std::string domain = g.node.attr_string(kDomain);
  const std::string name = g.node.attr_string(kName);
  auto derivative = find_function_gradient(domain, name);
  if (derivative == nullptr) {
    fail(g.node.label(), " gradient of function ", domain, ".", name, ": it was taken back after the model was read");
  }
  emit_custom_gradient(g, *derivative, results_of(g.node));
}

const Register kOp({.name = "FunctionGradient",
                    .domain = "backpass",
                    .doc = "results of a function whose gradient a user registered",
                    .inputs = {0, -1},
                    .outputs = {1, -1},
                    .types = {},
                    .infer = infer,
                    .compute = compute,
                    .gradient = gradient,
                    .detached_inputs = results_of});

}  // namespace

bool is_function_gradient(const Node& node) { return node.op == "FunctionGradient" && node.domain == "backpass"; }

std::size_t results_of(const Node& node) {
  const std::int64_t results = node.attr_int(kResults, 0);
  if (results < 0 || results > static_cast<std::int64_t>(node.inputs.size())) {
    fail(node.label(), " ", kResults, ": got ", results, ", expected 0 to the number of inputs");
  }
  return static_cast<std::size_t>(results);
}

Node* add_function_gradient(Graph& graph, const std::vector<Value*>& results, const std::vector<Value*>& arguments,
                            const std::vector<Value*>& outputs, const FunctionName& function,
                            std::string_view node_name) {
  std::vector<Value*> reads = results;
  reads.insert(reads.end(), arguments.begin(), arguments.end());
  Node* node = graph.add_node("FunctionGradient", std::move(reads), outputs, node_name, "backpass");
  node->attributes.emplace(kDomain, function.domain);
  node->attributes.emplace(kName, function.name);
  node->attributes.emplace(kResults, static_cast<std::int64_t>(results.size()));
  return node;
}

void remove_function_gradients(Graph& graph) {
  bool any = false;
  for (Node* node : graph.nodes()) {
    for (auto& [key, sub] : node->subgraphs) remove_function_gradients(*sub);
    if (!is_function_gradient(*node)) continue;
    any = true;
    for (std::size_t k = 0; k < node->outputs.size(); ++k) {
      if (node->outputs[k] != nullptr) graph.replace_uses(node->outputs[k], node->inputs.at(k));
    }
  }
  if (any) graph.remove_dead_nodes();
}

}  // namespace backpass
