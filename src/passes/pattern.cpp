#include "passes/pattern.hpp"

#include <algorithm>

namespace backpass::pattern {

bool is_op(const Node* node, std::string_view op, std::string_view domain) {
  return node != nullptr && node->domain == domain && node->op == op;
}

std::size_t axis_from_front(std::int64_t axis, std::size_t rank) {
  return static_cast<std::size_t>(axis < 0 ? axis + static_cast<std::int64_t>(rank) : axis);
}

std::optional<std::vector<std::int64_t>> constant_ints(const Node& node, std::size_t input,
                                                       std::string_view attribute) {
  const Value* v = node.input(input);
  if (v == nullptr) {
    if (!node.has_attribute(attribute)) return std::nullopt;
    return node.attr_ints(attribute);
  }
  if (!v->constant) return std::nullopt;
  std::vector<std::int64_t> numbers;
  const Tensor& t = *v->constant;
  for (std::int64_t i = 0; i < t.size(); ++i) {
    if (t.dtype() == DType::int64) numbers.push_back(t.as<std::int64_t>()[i]);
    if (t.dtype() == DType::int32) numbers.push_back(t.as<std::int32_t>()[i]);
  }
  return static_cast<std::int64_t>(numbers.size()) == t.size() ? std::optional(numbers) : std::nullopt;
}

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
