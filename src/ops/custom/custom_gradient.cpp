// Gradients that users register: what their rules see, and the nodes that compute by numbers.
#include <algorithm>

#include "gradient/rule.hpp"
#include "graph/infer.hpp"
#include "ops/custom/custom_operator.hpp"

namespace backpass {
namespace {

bool may_be_equal(const Shape& a, const Shape& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Dim& x, const Dim& y) { return !x.is_known() || !y.is_known() || x == y; });
}

AttributeList to_list(const Attributes& attributes) {
  AttributeList list;
  for (const auto& [name, value] : attributes) {
    std::visit([&, &key = name](const auto& v) { list.emplace_back(key, v); }, value);
  }
  return list;
}

bool is_within(std::size_t count, const Arity& arity) {
  return static_cast<int>(count) >= arity.min && (arity.max < 0 || static_cast<int>(count) <= arity.max);
}

void check_value(const OperatorCall& call, const Value* value) {
  if (value == nullptr) fail(call.label(), " gradient rule: got no value where one is read");
}

}  // namespace

GradientGraph::GradientGraph(GradientContext& context, std::size_t results)
    : context_(context), call_(context.node, results), results_(results), answered_(call_.input_count(), false) {}

Value* GradientGraph::x(std::size_t i) const {
  if (!call_.has_input(i)) fail(call_.label(), " gradient rule reads input ", i, ", which is omitted");
  return context_.node.inputs[results_ + i];
}

Value* GradientGraph::y(std::size_t k) const {
  if (!call_.has_output(k)) fail(call_.label(), " gradient rule reads output ", k, ", which is omitted");
  return context_.node.outputs[k];
}

bool GradientGraph::has_dy(std::size_t k) const { return context_.has_dy(k); }

Value* GradientGraph::dy(std::size_t k) {
  y(k);
  return context_.dy(k);
}

bool GradientGraph::wants(std::size_t i) const { return context_.wants(results_ + i); }

void GradientGraph::set(std::size_t i, Value* gradient) {
  if (i >= answered_.size() || answered_[i]) {
    fail(call_.label(), " gradient of input ", i, ": got it twice, or there is no such input");
  }
  answered_[i] = true;
  if (!wants(i)) return;
  const Type& expected = x(i)->type;
  if (gradient != nullptr) {
    const Type& got = gradient->type;
    const bool fits = got.is_tensor() && got.dtype == expected.dtype &&
                      (!got.shape || !expected.shape || may_be_equal(*got.shape, *expected.shape));
    if (!fits) fail(call_.label(), " gradient of input ", i, ": got ", got.str(), ", expected ", expected.str());
  }
  context_.set(results_ + i, gradient);
}

void GradientGraph::set_reduced(std::size_t i, Value* gradient) {
  if (gradient != nullptr && wants(i)) gradient = reduce_like(gradient, x(i));
  set(i, gradient);
}

std::vector<Value*> GradientGraph::ops(std::string_view name, std::vector<Value*> inputs, std::size_t outputs,
                                       const Attributes& attributes, std::string_view domain) {
  const OpDef* def = find_op(domain, name);
  const std::string_view shown_domain = domain.empty() ? "ai.onnx" : domain;
  if (def == nullptr) {
    fail(call_.label(), " gradient rule: got operator ", shown_domain, ".", name, ", which Backpass does not have");
  }
  if (!is_within(inputs.size(), def->inputs) || !is_within(outputs, def->outputs)) {
    fail(call_.label(), " gradient rule: got ", inputs.size(), " inputs and ", outputs, " outputs of ", shown_domain,
         ".", name, ", expected ", def->inputs.min, " to ", def->inputs.max, " and ", def->outputs.min, " to ",
         def->outputs.max, " (-1: any number)");
  }
  return context_.b.ops(name, std::move(inputs), outputs, to_list(attributes), domain);
}

Value* GradientGraph::op(std::string_view name, std::vector<Value*> inputs, const Attributes& attributes,
                         std::string_view domain) {
  return ops(name, std::move(inputs), 1, attributes, domain)[0];
}

Value* GradientGraph::constant(Tensor tensor) { return context_.b.constant(std::move(tensor)); }
Value* GradientGraph::number(double value, const Value* like) { return context_.number(value, like); }

Value* GradientGraph::cast_like(Value* a, const Value* like) {
  check_value(call_, a);
  check_value(call_, like);
  return context_.cast_like(a, like);
}

Value* GradientGraph::shape_of(Value* a) {
  check_value(call_, a);
  return context_.shape_of(a);
}

Value* GradientGraph::zeros_like(Value* a) {
  check_value(call_, a);
  return context_.zeros_like(a);
}

Value* GradientGraph::reshape_like(Value* a, Value* like) {
  check_value(call_, a);
  check_value(call_, like);
  return context_.reshape_like(a, like);
}

Value* GradientGraph::expand_like(Value* a, Value* like) {
  check_value(call_, a);
  check_value(call_, like);
  return context_.expand_like(a, like);
}

Value* GradientGraph::reduce_like(Value* a, Value* like) {
  check_value(call_, a);
  check_value(call_, like);
  return context_.reduce_like(a, like);
}

TensorType GradientGraph::type_of(const Value* a) const {
  check_value(call_, a);
  TensorType type;
  type.dtype = a->type.dtype;
  if (!a->type.shape) return type;
  type.shape.emplace();
  for (const Dim& d : *a->type.shape) type.shape->emplace_back(d);
  return type;
}

void GradientGraph::check_complete() const {
  for (std::size_t i = 0; i < answered_.size(); ++i) {
    if (answered_[i] || !wants(i)) continue;
    fail(call_.label(), " gradient rule says nothing of input ", i, "; set its gradient, or none for zeros");
  }
}

namespace {

/// A node that computes by numbers: reads inputs, outputs and their gradients of the forward node.
void emit_backward(GradientContext& g, const CustomDerivative& derivative, std::size_t first) {
  const std::size_t inputs = g.node.inputs.size() - std::min(first, g.node.inputs.size());
  const std::size_t outputs = g.node.outputs.size();
  std::vector<Value*> reads(g.node.inputs.begin() + static_cast<std::ptrdiff_t>(g.node.inputs.size() - inputs),
                            g.node.inputs.end());
  reads.insert(reads.end(), g.node.outputs.begin(), g.node.outputs.end());
  for (std::size_t k = 0; k < outputs; ++k) reads.push_back(g.has_dy(k) ? g.dy(k) : nullptr);
  const std::string name = concat(g.node.name, "_Grad/", derivative.grad_op);
  std::vector<Value*> writes(inputs, nullptr);
  for (std::size_t i = 0; i < inputs; ++i) {
    if (g.wants(first + i)) writes[i] = g.b.graph.add_value(name);
  }
  Node* node = g.b.graph.add_node(derivative.grad_op, std::move(reads), writes, name, derivative.grad_domain);
  node->attributes = g.node.attributes;
  node->attributes.insert_or_assign(std::string(kForwardInputs), static_cast<std::int64_t>(inputs));
  node->attributes.insert_or_assign(std::string(kForwardOutputs), static_cast<std::int64_t>(outputs));
  infer_node(g.b.graph, *node);
  for (std::size_t i = 0; i < inputs; ++i) {
    if (writes[i] != nullptr) g.set(first + i, writes[i]);
  }
}

}  // namespace

void emit_custom_gradient(GradientContext& g, const CustomDerivative& derivative, std::size_t first) {
  for (std::size_t k = 0; k < first; ++k) g.set_zero(k);
  if (derivative.backward != nullptr) return emit_backward(g, derivative, first);
  GradientGraph graph(g, first);
  derivative.rule(graph);
  graph.check_complete();
}

}  // namespace backpass
