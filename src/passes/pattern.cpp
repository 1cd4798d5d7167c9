#include "passes/pattern.hpp"

#include <algorithm>

namespace backpass::pattern {

bool is_op(const Node* node, std::string_view op) { return node != nullptr && node->domain.empty() && node->op == op; }

std::optional<double> number_of(const Value* v) {
  if (v == nullptr || !v->constant || v->constant->size() != 1) return std::nullopt;
  const DType dtype = v->constant->dtype();
  if (!is_float(dtype) && !is_integer(dtype)) return std::nullopt;
  return v->constant->to_doubles().front();
}

bool is_identity(const Node* node) {
  if (is_op(node, "Cast")) return node->input(0)->type.dtype == node->output(0)->type.dtype;
  return is_op(node, "Identity");
}

Value* source_of(Value* v) {
  while (is_identity(v->producer)) v = v->producer->input(0);
  return v;
}

std::size_t rank_of(const Value* v) {
  return v != nullptr && v->type.is_tensor() && v->type.shape ? v->type.shape->size() : 0;
}

bool has_same_type(const Value* a, const Value* b) {
  return a->type.is_tensor() && b->type.is_tensor() && a->type.dtype == b->type.dtype && a->type.shape &&
         a->type.shape == b->type.shape;
}

bool is_read_within(const Graph& graph, const Value* v, const NodeSet& nodes) {
  return !graph.is_output(v) && std::all_of(v->readers.begin(), v->readers.end(),
                                            [&](const Node* reader) { return nodes.count(reader) != 0; });
}

std::vector<Value*> inner_values(const Graph& graph, const NodeSet& nodes) {
  std::vector<Value*> inner;
  for (const Node* node : nodes) {
    for (Value* v : node->outputs) {
      if (v != nullptr && is_read_within(graph, v, nodes)) inner.push_back(v);
    }
  }
  return inner;
}

}  // namespace backpass::pattern
