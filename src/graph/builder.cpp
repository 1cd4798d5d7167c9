#include "graph/builder.hpp"

#include "graph/infer.hpp"
#include "support/visit.hpp"

namespace backpass {

Builder::Builder(Graph& g, const Node* position, std::string prefix, bool infer)
    : graph(g), position_(position), prefix_(std::move(prefix)), infer_(infer) {}

std::vector<Value*> Builder::ops(std::string_view op, std::vector<Value*> inputs, std::size_t output_count,
                                 const AttributeList& attributes, std::string_view domain) {
  std::string name = concat(prefix_, "/", op, "_", counter_++);
  std::vector<Value*> outputs;
  for (std::size_t k = 0; k < output_count; ++k) outputs.push_back(graph.add_value(name));
  Node* node = graph.add_node(op, std::move(inputs), outputs, name, domain, position_);
  ensure(node->def != nullptr, "builder: operator ", domain, ".", op, " is not registered");
  for (const auto& [key, attribute] : attributes) node->attributes.emplace(key, attribute);
  if (!infer_) return outputs;
  infer_node(graph, *node);
  if (node->def->expand == nullptr) return outputs;
  Builder inner(graph, position_, name, true);
  return node->def->expand(inner, *node);
}

Value* Builder::op(std::string_view op, std::vector<Value*> inputs, const AttributeList& attributes,
                   std::string_view domain) {
  return ops(op, std::move(inputs), 1, attributes, domain).front();
}

Value* Builder::constant(Tensor tensor) { return graph.add_constant(prefix_ + "/const", std::move(tensor)); }

Value* Builder::ints(std::vector<std::int64_t> values) { return constant(Tensor::ints(values)); }

Value* Builder::integer(std::int64_t value) { return constant(Tensor::scalar_int(value)); }

Value* Builder::scalar(double value, const Value* like) { return scalar(value, like->type.dtype); }

Value* Builder::scalar(double value, DType dtype) {
  Tensor t(dtype, {});
  if (is_float(dtype)) {
    visit_float(dtype, [&]<class T>() { *t.as<T>() = static_cast<T>(value); });
  } else {
    visit_integer_or_bool(dtype, [&]<class T>() { *t.as<T>() = static_cast<T>(value); });
  }
  return constant(std::move(t));
}

}  // namespace backpass
