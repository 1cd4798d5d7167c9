#include "training/module_graph.hpp"

#include <algorithm>

#include "gradient/activity.hpp"
#include "gradient/reverse.hpp"
#include "graph/infer.hpp"
#include "graph/op.hpp"
#include "ops/custom/yield.hpp"

namespace backpass {
namespace {

std::vector<Value*> inputs_named(const Graph& graph, std::span<const std::string> names) {
  std::vector<Value*> found;
  for (const std::string& name : names) {
    auto it = std::find_if(graph.inputs.begin(), graph.inputs.end(), [&](const Value* v) { return v->name == name; });
    if (it == graph.inputs.end()) fail("requires_grad '", name, "': got a name that is no input of the module's graph");
    if (!carries_gradient(*it)) {
      fail("requires_grad '", name, "': got ", (*it)->type.str(), ", expected a tensor of floats");
    }
    found.push_back(*it);
  }
  return found;
}

/// Appends the YieldOp; returns the gradients it gives.
std::vector<Value*> add_yield(Graph& graph, const std::vector<std::size_t>& seeds) {
  std::vector<Value*> results;
  std::vector<std::int64_t> numbers;
  for (std::size_t k : seeds) {
    const Value* output = graph.outputs[k];
    results.push_back(graph.add_value(output->name + "_grad", output->type));
    numbers.push_back(static_cast<std::int64_t>(k));
  }
  Node* node = graph.add_node("YieldOp", graph.outputs, results, "YieldOp", "com.microsoft");
  node->def = find_op("com.microsoft", "YieldOp");
  node->attributes[kYieldSeeds] = numbers;
  return results;
}

/// Once the gradients are there, a stop has no further meaning.
void remove_stops(Graph& graph) {
  for (Node* node : graph.nodes()) {
    for (auto& [key, sub] : node->subgraphs) remove_stops(*sub);
    if (node->op != "StopGradient" || node->domain != "backpass") continue;
    node->op = "Identity";
    node->domain = "";
    node->def = find_op("", "Identity");
  }
}

}  // namespace

NodeSet up_to_yield(const Graph& graph) {
  NodeSet found;
  for (const Node* node : graph.nodes()) {
    found.insert(node);
    if (is_yield(*node)) break;
  }
  return found;
}

std::vector<bool> differentiable_outputs(const Graph& graph, std::span<const std::string> inputs) {
  const std::vector<Value*> wrt = inputs_named(graph, inputs);
  const ValueSet reached = reached_from(graph, {wrt.begin(), wrt.end()});
  std::vector<bool> result;
  for (const Value* v : graph.outputs) result.push_back(carries_gradient(v) && reached.count(v) != 0);
  return result;
}

std::vector<std::string> differentiable_inputs(const Graph& graph, const Value* output,
                                               std::span<const std::string> inputs) {
  std::vector<std::string> found;
  if (!carries_gradient(output)) return found;
  const ValueSet needed = needed_for(graph, {output});
  for (const Value* v : inputs_named(graph, inputs)) {
    if (needed.count(v) != 0) found.push_back(v->name);
  }
  return found;
}

ModuleGraph add_module_gradients(std::unique_ptr<Graph> graph, std::span<const std::string> requires_grad,
                                 const std::vector<bool>& seeded) {
  ModuleGraph module;
  module.user_outputs = graph->outputs.size();
  std::vector<Value*> outputs;
  for (std::size_t k = 0; k < seeded.size(); ++k) {
    if (!seeded[k]) continue;
    module.seeds.push_back(k);
    outputs.push_back(graph->outputs.at(k));
  }
  const std::vector<Value*> inputs = inputs_named(*graph, requires_grad);
  const ValueSet active = active_values(*graph, outputs, inputs);
  std::vector<Value*> wrt;
  for (Value* v : inputs) {
    module.gradients.push_back(active.count(v) != 0 ? static_cast<int>(wrt.size()) : -1);
    if (active.count(v) != 0) wrt.push_back(v);
  }
  if (!wrt.empty()) {
    const std::vector<Value*> seeds = add_yield(*graph, module.seeds);
    const std::vector<Value*> gradients = add_gradients(*graph, outputs, seeds, wrt);
    graph->outputs.insert(graph->outputs.end(), gradients.begin(), gradients.end());
    graph->first_gradient = module.user_outputs;
    graph->gradient_count = gradients.size();
  }
  remove_stops(*graph);
  graph->remove_dead_nodes();
  module.graph = std::move(graph);
  return module;
}

}  // namespace backpass
