#include "gradient/activity.hpp"

#include <algorithm>

#include "graph/op.hpp"

namespace backpass {

bool holds_floats(const Type& type) {
  if (type.element != nullptr) return holds_floats(*type.element);
  return type.is_tensor() && is_float(type.dtype);
}

bool carries_gradient(const Value* v) { return v->type.is_tensor() && is_float(v->type.dtype); }

bool reads_any(const Node& node, const ValueSet& values) {
  bool any = false;
  for_each_read(node, [&](const Value* v) { any = any || values.count(v) != 0; });
  return any;
}

bool writes_any(const Node& node, const ValueSet& values) {
  return std::any_of(node.outputs.begin(), node.outputs.end(),
                     [&](const Value* v) { return v != nullptr && values.count(v) != 0; });
}

namespace {

bool is_complex(DType dtype) { return dtype == DType::complex64 || dtype == DType::complex128; }

/// Complex numbers come and go by operators of PyTorch, which differentiate them.
bool passes_on(const Type& type) { return holds_floats(type) || (type.is_tensor() && is_complex(type.dtype)); }

/// What a node that PyTorch ran keeps for its gradient: that depends on its inputs, though it is but a number.
bool is_context(const Value* v) {
  return v->producer != nullptr && v->producer->has_attribute("input_requires_grads") && v->type.is_tensor() &&
         v->type.dtype == DType::int64 && v == v->producer->outputs.back() && v->producer->has_attribute("arguments");
}

/// What the node's results depend on differentiably. Behind a function with a gradient of its own that is the
/// arguments, and not what its body computed from them.
template <class F>
void for_each_dependence(const Node& node, F&& f) {
  if (node.def == nullptr || node.def->detached_inputs == nullptr) return for_each_read(node, f);
  for (std::size_t i = node.def->detached_inputs(node); i < node.inputs.size(); ++i) {
    if (node.inputs[i] != nullptr) f(node.inputs[i]);
  }
}

bool is_differentiable(const Node& node) { return node.def != nullptr && !node.def->is_flat; }

}  // namespace

ValueSet reached_from(const Graph& graph, ValueSet from) {
  for (const Node* node : graph.nodes()) {
    bool depends = false;
    for_each_dependence(*node, [&](const Value* v) { depends = depends || from.count(v) != 0; });
    if (!is_differentiable(*node) || !depends) continue;
    for (const Value* v : node->outputs) {
      if (v != nullptr && (passes_on(v->type) || is_context(v))) from.insert(v);
    }
  }
  return from;
}

ValueSet needed_for(const Graph& graph, ValueSet outputs) {
  const auto& nodes = graph.nodes();
  for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
    if (!is_differentiable(**it) || !writes_any(**it, outputs)) continue;
    for_each_dependence(**it, [&](const Value* v) {
      if (passes_on(v->type) || is_context(v)) outputs.insert(v);
    });
  }
  return outputs;
}

ValueSet active_values(const Graph& graph, std::span<Value* const> outputs, std::span<Value* const> wrt) {
  const ValueSet reached = reached_from(graph, {wrt.begin(), wrt.end()});
  const ValueSet needed = needed_for(graph, {outputs.begin(), outputs.end()});
  ValueSet active;
  std::set_intersection(reached.begin(), reached.end(), needed.begin(), needed.end(),
                        std::inserter(active, active.end()));
  return active;
}

}  // namespace backpass
