#include "runtime/interpreter.hpp"

#include <unordered_map>

#include "graph/evaluate.hpp"
#include "support/interruption.hpp"
#include "support/random_seed.hpp"

namespace backpass {
namespace {

using Environment = std::unordered_map<const Value*, RuntimeValue>;

RuntimeValue read(const Environment& environment, const Value* v) {
  if (v == nullptr) return {};
  auto it = environment.find(v);
  if (it != environment.end()) return it->second;
  ensure(v->constant.has_value(), "value '", v->name, "' is read before it is computed");
  return *v->constant;
}

std::unordered_map<const Value*, const Node*> last_uses(const Graph& graph) {
  std::unordered_map<const Value*, const Node*> last;
  for (const Node* node : graph.nodes()) {
    for_each_read(*node, [&](const Value* v) { last[v] = node; });
  }
  for (const Value* v : graph.outputs) last.erase(v);
  return last;
}

}  // namespace

std::vector<RuntimeValue> interpret(const Graph& graph, const std::vector<RuntimeValue>& inputs,
                                    const std::vector<RuntimeValue>& captured) {
  ensure(inputs.size() == graph.inputs.size() && captured.size() == graph.captures.size(), "interpret: input count");
  check_interruption();  // a body need not have nodes
  Environment environment;
  for (std::size_t i = 0; i < inputs.size(); ++i) environment[graph.inputs[i]] = inputs[i];
  for (std::size_t i = 0; i < captured.size(); ++i) environment[graph.captures[i].inner] = captured[i];
  auto last = last_uses(graph);
  for (const Node* node : graph.nodes()) {
    std::vector<RuntimeValue> arguments;
    for (const Value* v : node->inputs) arguments.push_back(read(environment, v));
    SubgraphRunner runner = [&](std::string_view key, const std::vector<RuntimeValue>& values) {
      const Graph* sub = node->subgraph(key);
      ensure(sub != nullptr, shown(*node), " has no subgraph '", key, "'");
      std::vector<RuntimeValue> outer;
      for (const Capture& c : sub->captures) outer.push_back(read(environment, c.outer));
      SubgraphScope scope;
      return interpret(*sub, values, outer);
    };
    std::vector<RuntimeValue> results = evaluate_node(*node, std::move(arguments), runner);
    for (std::size_t k = 0; k < node->outputs.size(); ++k) {
      if (node->outputs[k] != nullptr) environment[node->outputs[k]] = std::move(results[k]);
    }
    for_each_read(*node, [&](const Value* v) {
      auto it = last.find(v);
      if (it != last.end() && it->second == node) environment.erase(v);
    });
  }
  std::vector<RuntimeValue> outputs;
  for (const Value* v : graph.outputs) outputs.push_back(read(environment, v));
  return outputs;
}

}  // namespace backpass
