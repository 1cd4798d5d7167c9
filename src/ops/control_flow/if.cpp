// If: runs one of two bodies.
#include <utility>
#include <vector>

#include "graph/op.hpp"
#include "kernels/slices.hpp"
#include "ops/control_flow/if_rule.hpp"
#include "ops/control_flow/subgraph.hpp"

namespace backpass {
namespace {

// What is wrong with a branch that is never taken does not matter.
void try_elaborate(const Node& node, const char* branch) {
  try {
    elaborate_body(node, branch, {});
  } catch (const InvalidInput&) {
  } catch (const Unsupported&) {
  }
}

void infer(InferContext& c) {
  const auto outputs = static_cast<std::int64_t>(c.node.outputs.size());
  body_of(c.node, "then_branch", 0, outputs);
  body_of(c.node, "else_branch", 0, outputs);
  if (const Tensor* condition = c.constant(0); condition != nullptr && is_truth(*condition)) {
    const bool taken = *condition->as<bool>();
    try_elaborate(c.node, taken ? "else_branch" : "then_branch");
    std::vector<Type> types = infer_body(c.node, taken ? "then_branch" : "else_branch", {});
    for (std::size_t i = 0; i < types.size(); ++i) c.set_type(i, std::move(types[i]));
    return;
  }
  const std::vector<Type> a = infer_body(c.node, "then_branch", {});
  const std::vector<Type> b = infer_body(c.node, "else_branch", {});
  for (std::size_t i = 0; i < a.size(); ++i) c.set_type(i, merged(c, a[i], b[i], i));
  c.require(c.dtype(0) == DType::boolean, "condition: got ", name_of(c.dtype(0)), ", expected bool");
}

void compute(ComputeContext& c) {
  const bool condition = truth(c, c.inputs.at(0), "condition");
  std::vector<RuntimeValue> results = c.run_subgraph(condition ? "then_branch" : "else_branch", {});
  ensure(results.size() == c.outputs.size(), "If: number of results");
  for (std::size_t i = 0; i < results.size(); ++i) c.outputs[i] = owned(results[i]);
}

const Register if_op{{.name = "If",
                      .since = 25,
                      .doc = "Runs one of two bodies, chosen by a condition.",
                      .inputs = {1, 1},
                      .outputs = {1, -1},
                      .types = types::boolean,
                      .infer = infer,
                      .compute = compute,
                      .gradient = if_gradient,
                      .fused_gradient = if_fused_gradient}};

}  // namespace
}  // namespace backpass
