// SequenceMap: applies a body to each element of one or more sequences.
#include <utility>
#include <vector>

#include "graph/op.hpp"
#include "kernels/slices.hpp"
#include "ops/control_flow/subgraph.hpp"
#include "ops/sequences/sequence_rules.hpp"

namespace backpass {
namespace {

const Graph& checked_body(const Node& node) {
  return body_of(node, "body", static_cast<std::int64_t>(node.inputs.size()),
                 static_cast<std::int64_t>(node.outputs.size()));
}

void infer(InferContext& c) {
  checked_body(c.node);
  std::vector<Type> inputs;
  for (std::size_t i = 0; i < c.input_count(); ++i) {
    const Type& type = c.type(i);
    inputs.push_back(type.kind == Type::Kind::sequence ? one_of(c, *type.element, i) : type);
  }
  std::vector<Type> outputs = infer_body(c.node, "body", std::move(inputs));
  for (std::size_t i = 0; i < outputs.size(); ++i) c.set_type(i, Type::sequence(std::move(outputs[i])));
}

void compute(ComputeContext& c) {
  const std::size_t count = c.sequence(0).size();
  std::vector<std::vector<RuntimeValue>> results(c.outputs.size());
  for (std::size_t item = 0; item < count; ++item) {
    std::vector<RuntimeValue> inputs;
    for (std::size_t i = 0; i < c.inputs.size(); ++i) {
      if (c.inputs[i].kind != RuntimeValue::Kind::sequence) {
        inputs.push_back(c.inputs[i]);
        continue;
      }
      const auto& sequence = c.sequence(i);
      c.require(sequence.size() == count, "length of sequence ", i, ": got ", sequence.size(), ", expected ", count);
      inputs.push_back(sequence[item]);
    }
    std::vector<RuntimeValue> outputs = c.run_subgraph("body", std::move(inputs));
    ensure(outputs.size() == results.size(), "SequenceMap: number of results");
    for (std::size_t i = 0; i < outputs.size(); ++i) results[i].push_back(owned(outputs[i]));
  }
  for (std::size_t i = 0; i < results.size(); ++i) c.outputs[i] = RuntimeValue::sequence(std::move(results[i]));
}

const Register sequence_map{{.name = "SequenceMap",
                             .since = 17,
                             .doc = "Applies a body to each element of one or more sequences.",
                             .inputs = {1, -1},
                             .outputs = {1, -1},
                             .types = {},
                             .infer = infer,
                             .compute = compute,
                             .gradient = sequence_map_gradient,
                             .fused_gradient = sequence_map_fused_gradient}};

}  // namespace
}  // namespace backpass
