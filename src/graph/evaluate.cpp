#include "graph/evaluate.hpp"

#include "graph/blame.hpp"
#include "graph/infer.hpp"
#include "support/interruption.hpp"

namespace backpass {
namespace {

std::vector<RuntimeValue> compute(const Node& node, std::vector<RuntimeValue> inputs,
                                  const SubgraphRunner& run_subgraph) {
  ComputeContext c(node);
  c.inputs = std::move(inputs);
  c.run_subgraph = run_subgraph;
  node.def->compute(c);
  return std::move(c.outputs);
}

std::vector<Type> output_types(const Node& node, const std::vector<RuntimeValue>& inputs) {
  std::vector<Type> types;
  types.reserve(inputs.size());
  for (const RuntimeValue& v : inputs) types.push_back(type_of(v));
  std::vector<const Type*> pointers(inputs.size(), nullptr);
  std::vector<const Tensor*> constants(inputs.size(), nullptr);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].kind == RuntimeValue::Kind::none) continue;
    pointers[i] = &types[i];
    if (inputs[i].is_tensor()) constants[i] = &inputs[i].tensor;
  }
  InferContext c(node, std::move(pointers), std::move(constants), {});
  run_infer_rule(c);
  return std::move(c.outputs);
}

// Elements of a sequence may differ in shape, and a binding serves other sequences too: shapes are left open.
Type common_type(const std::vector<RuntimeValue>& items) {
  if (items.empty()) return {};
  return items.front().is_tensor() ? Type::tensor(items.front().tensor.dtype()) : type_of(items.front());
}

std::vector<RuntimeValue> run_kernel(const Node& node, const std::vector<RuntimeValue>& inputs) {
  std::vector<Type> types = output_types(node, inputs);
  PrepareContext context(node);
  std::vector<const void*> in;
  for (const RuntimeValue& v : inputs) {
    TensorInfo info;
    if (v.is_tensor()) info = {v.tensor.dtype(), v.tensor.dims(), &v.tensor, true};
    context.inputs.push_back(std::move(info));
    in.push_back(v.is_tensor() ? v.tensor.data() : nullptr);
  }
  std::vector<RuntimeValue> results(node.outputs.size());
  std::vector<void*> out(node.outputs.size(), nullptr);
  for (std::size_t k = 0; k < node.outputs.size(); ++k) {
    if (node.outputs[k] == nullptr) {
      context.outputs.emplace_back();
      continue;
    }
    ensure(types[k].is_tensor() && types[k].shape && is_known(*types[k].shape), shown(node), " shape of output ", k,
           " could not be inferred from concrete inputs: ", shown(types[k]));
    Tensor t(types[k].dtype, to_dims(*types[k].shape));
    out[k] = t.mutable_data();
    context.outputs.push_back({t.dtype(), t.dims(), nullptr, true});
    results[k] = std::move(t);
  }
  Kernel kernel = prepare_kernel(context);
  Tensor scratch;
  if (context.scratch_bytes > 0) scratch = Tensor(DType::uint8, {static_cast<std::int64_t>(context.scratch_bytes)});
  kernel({in.data(), out.data(), static_cast<std::byte*>(scratch.mutable_data())});
  return results;
}

}  // namespace

Type type_of(const RuntimeValue& value) {
  switch (value.kind) {
    case RuntimeValue::Kind::tensor:
      return Type::tensor(value.tensor.dtype(), to_shape(value.tensor.dims()));
    case RuntimeValue::Kind::sequence:
      return Type::sequence(common_type(*value.items));
    case RuntimeValue::Kind::none:
      break;
  }
  return {};
}

std::vector<RuntimeValue> evaluate_node(const Node& node, std::vector<RuntimeValue> inputs,
                                        const SubgraphRunner& run_subgraph) {
  ensure(node.def != nullptr, shown(node), " has no definition");
  return blaming(node, [&] {
    check_interruption();
    if (node.def->compute != nullptr) return compute(node, std::move(inputs), run_subgraph);
    ensure(node.def->prepare != nullptr, shown(node), " has no kernel");
    return run_kernel(node, inputs);
  });
}

}  // namespace backpass
