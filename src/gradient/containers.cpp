#include "gradient/containers.hpp"

#include <memory>
#include <utility>

#include "gradient/body.hpp"
#include "graph/infer.hpp"

namespace backpass {
namespace {

bool is_sequence(const Type& type) { return type.kind == Type::Kind::sequence; }

/// A node with bodies, named after its output.
Value* with_bodies(Builder& b, std::string_view op, std::vector<Value*> inputs, Bodies&& bodies) {
  Value* result = b.graph.add_value(op);
  Node* node = b.graph.add_node(op, std::move(inputs), {result}, result->name);
  for (auto& [key, body] : bodies) b.graph.add_subgraph(*node, key, std::move(body));
  infer_node(b.graph, *node);
  return result;
}

Value* filled_tensor(Builder& b, Value* a, double number) {
  if (a->type.shape && is_known(*a->type.shape)) {
    return b.op("Expand", {b.scalar(number, a), b.ints(to_dims(*a->type.shape))});
  }
  return b.op("Expand", {b.scalar(number, a), b.op("Shape", {a})});
}

/// Nothing can tell what an empty optional would have held.
Value* placeholder(Builder& b, const Type& type) {
  if (!is_sequence(type)) return b.op("Identity", {b.scalar(0, type.dtype)});
  return b.op("SequenceEmpty", {}, {{"dtype", static_cast<std::int64_t>(type.element->dtype)}});
}

Value* filled_optional(Builder& b, Value* a, double number) {
  Bodies branches;
  for (const char* key : {"then_branch", "else_branch"}) {
    auto branch = std::make_unique<Graph>();
    branch->name = key;
    Builder inner(*branch, nullptr, concat(a->name, "_", key));
    const bool is_full = branches.empty();
    Value* result = is_full ? filled_like(inner, inner.op("OptionalGetElement", {captured_in(*branch, a)}), number)
                            : placeholder(inner, gradient_type(a->type));
    branch->outputs.push_back(result);
    branches.emplace_back(key, std::move(branch));
  }
  return with_bodies(b, "If", {b.op("OptionalHasElement", {a})}, std::move(branches));
}

}  // namespace

const Type& gradient_type(const Type& type) {
  return type.kind == Type::Kind::optional ? gradient_type(*type.element) : type;
}

Value* mapped(Builder& b, std::vector<Value*> sequences,
              const std::function<Value*(Builder&, const std::vector<Value*>&)>& write) {
  auto body = std::make_unique<Graph>();
  body->name = "element";
  for (const Value* s : sequences) body->inputs.push_back(body->add_value(s->name + "_element", *s->type.element));
  Builder inner(*body, nullptr, sequences[0]->name + "_element");
  body->outputs.push_back(write(inner, body->inputs));
  Bodies bodies;
  bodies.emplace_back("body", std::move(body));
  return with_bodies(b, "SequenceMap", std::move(sequences), std::move(bodies));
}

Value* filled_like(Builder& b, Value* a, double number) {
  if (a->type.kind == Type::Kind::optional) return filled_optional(b, a, number);
  if (!is_sequence(a->type)) return filled_tensor(b, a, number);
  return mapped(b, {a}, [&](Builder& inner, const auto& element) { return filled_tensor(inner, element[0], number); });
}

Value* sum_of(Builder& b, const std::vector<Value*>& parts) {
  if (parts.size() == 1) return parts[0];
  if (!is_sequence(parts[0]->type)) return b.op("Sum", parts);
  return mapped(b, parts, [](Builder& inner, const auto& elements) { return inner.op("Sum", elements); });
}

Value* sum_over(GradientContext& g, Value* sequence, Value* like) {
  Value* some = g.op("SequenceInsert", {sequence, g.zeros_like(like)});
  Value* stacked = g.op("ConcatFromSequence", {some}, {{"axis", std::int64_t{0}}, {"new_axis", std::int64_t{1}}});
  return g.sum(stacked, {0}, false);
}

}  // namespace backpass
