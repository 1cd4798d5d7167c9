// Loop: runs a body a number of times, or while a condition holds.
#include <limits>
#include <utility>
#include <vector>

#include "gradient/rule.hpp"
#include "graph/op.hpp"
#include "kernels/slices.hpp"
#include "ops/control_flow/iteration_rule.hpp"
#include "ops/control_flow/subgraph.hpp"

namespace backpass {
namespace {

// Inputs of the node are (M, cond, variables...), of the body (iteration, cond,
// variables...); outputs of the body are (cond, variables..., scans...), of the
// node (variables..., scans...).
constexpr std::size_t kLeading = 2;

std::size_t variable_count(const Node& node) { return node.inputs.size() - std::min(node.inputs.size(), kLeading); }

const Graph& checked_body(const Node& node) {
  const Graph& body = body_of(node, "body", static_cast<std::int64_t>(variable_count(node) + kLeading),
                              static_cast<std::int64_t>(node.outputs.size() + 1));
  if (node.outputs.size() < variable_count(node))
    fail(node.label(), " outputs: got ", node.outputs.size(), ", expected at least one per loop variable, ",
         variable_count(node));
  return body;
}

// True when the body's condition can never end the loop: it is the constant
// true, or hands the initial true on.
bool runs_to_the_end(const InferContext& c, const Graph& body) {
  if (!c.has_input(1)) return true;
  const Value* condition = body.outputs[0];
  while (condition->producer != nullptr && condition->producer->op == "Identity" &&
         condition->producer->domain.empty() && condition->producer->input(0) != nullptr)
    condition = condition->producer->input(0);
  auto is_true = [](const Tensor* t) { return t != nullptr && is_truth(*t) && *t->as<bool>(); };
  if (!is_true(c.constant(1))) return false;
  return condition == body.inputs[1] || (condition->constant && is_true(&*condition->constant));
}

Dim iterations(InferContext& c, const Graph& body) {
  if (c.has_input(0) && runs_to_the_end(c, body))
    if (auto limit = c.maybe_ints(0); limit && limit->size() == 1)
      return limit->front().is_known() ? Dim(std::max<std::int64_t>(limit->front().value(), 0))
                                       : max(limit->front(), 0);
  return c.data_dependent("iterations");
}

void infer(InferContext& c) {
  const Graph& body = checked_body(c.node);
  std::vector<Type> initial;
  for (std::size_t i = kLeading; i < c.node.inputs.size(); ++i)
    initial.push_back(c.has_input(i) ? c.type(i) : body.inputs[i]->type);
  auto call = [&](const std::vector<Type>& variables) {
    std::vector<Type> inputs{Type::tensor(DType::int64, Shape{}), Type::tensor(DType::boolean, Shape{})};
    inputs.insert(inputs.end(), variables.begin(), variables.end());
    return infer_body(c.node, "body", std::move(inputs));
  };
  IterationTypes found = iteration_types(c, std::move(initial), 1, call);
  const std::size_t variables = found.variables.size();
  for (std::size_t i = 0; i < variables; ++i) c.set_type(i, std::move(found.variables[i]));
  const Dim count = iterations(c, body);
  for (std::size_t i = 0; i < found.others.size(); ++i) {
    Type& scan = found.others[i];
    if (scan.shape) scan.shape->insert(scan.shape->begin(), count);
    c.set_type(variables + i, std::move(scan));
  }
  if (c.has_input(0))
    c.require(c.dtype(0) == DType::int64, "trip count: got ", name_of(c.dtype(0)), ", expected int64");
  if (c.has_input(1))
    c.require(c.dtype(1) == DType::boolean, "condition: got ", name_of(c.dtype(1)), ", expected bool");
}

Tensor boolean(bool value) { return Tensor::from<bool>(DType::boolean, {}, std::array<bool, 1>{value}); }

void compute(ComputeContext& c) {
  const Graph& body = checked_body(c.node);
  std::int64_t limit = std::numeric_limits<std::int64_t>::max();
  if (c.has_input(0)) {
    c.require(c.tensor(0).size() == 1, "trip count: got ", c.tensor(0).size(), " elements, expected 1");
    limit = c.tensor(0).to_ints()[0];
  }
  const bool conditional = c.has_input(1);
  bool condition = !conditional || truth(c, c.inputs[1], "condition");
  std::vector<RuntimeValue> variables;
  for (std::size_t i = kLeading; i < c.inputs.size(); ++i) variables.push_back(owned(c.inputs[i]));
  std::vector<std::vector<Tensor>> scans(c.outputs.size() - variables.size());

  for (std::int64_t i = 0; i < limit && condition; ++i) {
    std::vector<RuntimeValue> inputs{Tensor::scalar_int(i), boolean(condition)};
    for (RuntimeValue& variable : variables) inputs.push_back(std::move(variable));
    std::vector<RuntimeValue> results = c.run_subgraph("body", std::move(inputs));
    if (conditional) condition = truth(c, results.at(0), "condition given by the body");
    for (std::size_t v = 0; v < variables.size(); ++v) variables[v] = owned(results.at(1 + v));
    for (std::size_t s = 0; s < scans.size(); ++s) {
      const RuntimeValue& item = results.at(1 + variables.size() + s);
      c.require(item.is_tensor(), "scan output ", s, ": expected a tensor from the body");
      scans[s].push_back(owned(item.tensor));
    }
  }

  SymbolValues symbols;  // of use when the body never ran
  for (std::size_t v = 0; v < variables.size(); ++v) {
    if (variables[v].is_tensor()) learn_symbols(body.inputs[kLeading + v]->type, variables[v].tensor.dims(), symbols);
    c.outputs[v] = std::move(variables[v]);
  }
  for (std::size_t s = 0; s < scans.size(); ++s) {
    const Type& element = body.outputs[1 + variables.size() + s]->type;
    c.outputs[variables.size() + s] = scans[s].empty() ? empty_scan_output(element, 0, symbols) : stacked(scans[s], 0);
  }
}

Iteration iteration_of(const Node& node) {
  const Graph& body = checked_body(node);
  const std::size_t variables = variable_count(node);
  Iteration it;
  it.number = body.inputs[0];
  it.condition = body.inputs[1];
  for (std::size_t i = 0; i < variables; ++i)
    it.states.push_back({i + kLeading, i, body.inputs[i + kLeading], body.outputs[i + 1]});
  for (std::size_t i = variables; i < node.outputs.size(); ++i) it.writes.push_back({i, body.outputs[i + 1]});
  return it;
}

void gradient(GradientContext& g) { iteration_gradient(g, iteration_of(g.node), true); }

void fused_gradient(GradientContext& g) { iteration_gradient(g, iteration_of(g.node), false); }

const Register loop{{.name = "Loop",
                     .since = 25,
                     .doc = "Runs a body a number of times, or while a condition holds.",
                     .inputs = {2, -1},
                     .outputs = {1, -1},
                     .types = {},
                     .infer = infer,
                     .compute = compute,
                     .gradient = gradient,
                     .fused_gradient = fused_gradient}};

}  // namespace
}  // namespace backpass
