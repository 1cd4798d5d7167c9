#include <algorithm>
#include <iterator>
#include <optional>

#include "graph/evaluate.hpp"
#include "graph/infer.hpp"
#include "graph/op.hpp"
#include "passes/list.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{64} << 20;
constexpr std::int64_t kMaxGrowth = std::int64_t{1} << 20;

bool is_foldable(const Node& node) {
  if (node.def == nullptr || node.def->is_random || !node.subgraphs.empty() || node.inputs.empty()) return false;
  if (node.def->prepare == nullptr && node.def->compute == nullptr) return false;
  std::int64_t in_bytes = 0;
  for (const Value* v : node.inputs) {
    if (v == nullptr) continue;
    if (!v->constant) return false;
    in_bytes += static_cast<std::int64_t>(v->constant->bytes());
  }
  std::int64_t out_bytes = 0;
  for (const Value* v : node.outputs) {
    if (v == nullptr) continue;
    if (!v->type.is_tensor()) return false;
    if (v->type.shape && is_known(*v->type.shape)) {
      out_bytes += static_cast<std::int64_t>(byte_size(v->type.dtype, element_count(to_dims(*v->type.shape))));
    }
  }
  return out_bytes <= kMaxBytes && out_bytes <= in_bytes + kMaxGrowth;
}

/// The node by itself in a graph, its constants with it.
std::unique_ptr<Graph> alone(const Node& node) {
  auto graph = std::make_unique<Graph>();
  auto copy = [&](const Value* v) {
    return v == nullptr  ? nullptr
           : v->constant ? graph->add_constant(v->name, *v->constant)
                         : graph->add_value(v->name);
  };
  std::vector<Value*> inputs;
  std::vector<Value*> outputs;
  std::transform(node.inputs.begin(), node.inputs.end(), std::back_inserter(inputs), copy);
  std::transform(node.outputs.begin(), node.outputs.end(), std::back_inserter(outputs), copy);
  graph->outputs = outputs;
  std::erase(graph->outputs, nullptr);
  Node* twin = graph->add_node(node.op, std::move(inputs), outputs, node.name, node.domain);
  twin->opset = node.opset;
  twin->attributes = node.attributes;
  return graph;
}

/// Of a node in the form of a file, which its kernel need not understand: one like it is brought into the internal form
/// and folded there.
std::optional<std::vector<Tensor>> results_as_written(const Node& node) {
  const bool constant =
      node.subgraphs.empty() &&
      std::all_of(node.inputs.begin(), node.inputs.end(), [](const Value* v) { return v == nullptr || v->constant; });
  if (!constant) return std::nullopt;
  const std::unique_ptr<Graph> graph = alone(node);
  if (!infer_graph(*graph).empty()) return std::nullopt;
  graph->remove_dead_nodes();  // those that inference has folded
  Reports ignored;
  fold_constants(*graph, ignored);
  std::vector<Tensor> results;
  auto next = graph->outputs.begin();
  for (const Value* v : node.outputs) {
    const Value* found = v == nullptr ? nullptr : *next++;
    if (found != nullptr && !found->constant) return std::nullopt;
    results.push_back(found == nullptr ? Tensor() : *found->constant);
  }
  return results;
}

std::optional<std::vector<Tensor>> results_of(const Node& node) {
  if (node.opset != 0) return results_as_written(node);
  if (!is_foldable(node)) return std::nullopt;
  std::vector<RuntimeValue> inputs;
  for (const Value* v : node.inputs) inputs.push_back(v == nullptr ? RuntimeValue() : RuntimeValue(*v->constant));
  std::vector<Tensor> results;
  for (const RuntimeValue& v : evaluate_node(node, std::move(inputs))) results.push_back(v.tensor);
  return results;
}

void become_constant(Value& value, Tensor tensor) {
  value.type = Type::tensor(tensor.dtype(), to_shape(tensor.dims()));
  value.constant = std::move(tensor);
  value.producer = nullptr;
}

}  // namespace

void fold_constants(Graph& graph, Reports& reports) {
  bool folded = false;
  for (Node* node : graph.nodes()) {
    std::optional<std::vector<Tensor>> results = results_of(*node);
    if (!results) continue;
    for (std::size_t k = 0; k < node->outputs.size(); ++k) {
      if (node->outputs[k] != nullptr) become_constant(*node->outputs[k], std::move((*results)[k]));
    }
    reports.push_back({.node = node->label(),
                       .what = "folded " + node->label() + " into a constant",
                       .why = "all of its inputs are constants",
                       .operations_saved = operations_of(*node),
                       .bytes_saved = bytes_of(node->outputs)});
    node->outputs.clear();
    folded = true;
  }
  if (folded) graph.remove_dead_nodes();
}

}  // namespace backpass
