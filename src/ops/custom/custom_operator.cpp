// How operators of users run.
#include "ops/custom/custom_operator.hpp"

#include <cstring>
#include <mutex>

#include "gradient/rule.hpp"
#include "ops/custom/custom_registration.hpp"

namespace backpass {
namespace {

const CustomDef& def_of(const Node& node) { return static_cast<const CustomDef&>(*node.def); }

TensorType type_of(const Tensor& t) { return {t.dtype(), std::vector<Extent>(t.dims().begin(), t.dims().end())}; }

std::string to_string(const TensorType& type) {
  Type shown = Type::tensor(type.dtype);
  if (type.shape) {
    shown.shape.emplace();
    for (const Extent& e : *type.shape) shown.shape->push_back(e.dim());
  }
  return shown.str();
}

/// What the rule says of the outputs, one per output of the node.
std::vector<TensorType> apply_types(const CustomDef& def, const Node& node, std::span<const TensorType> inputs) {
  std::vector<TensorType> types;
  if (def.type_rule) {
    types = def.type_rule(OperatorCall(node), inputs);
  } else {
    if (inputs.empty()) fail(node.label(), " types: got no input to take them from; register a rule for types");
    types.assign(node.outputs.size(), inputs[0]);
  }
  if (types.size() < node.outputs.size()) {
    fail(node.label(), " rule for types: got ", types.size(), " types, expected ", node.outputs.size());
  }
  for (std::size_t k = 0; k < node.outputs.size(); ++k) {
    if (node.outputs[k] == nullptr || types[k].dtype != DType::undefined) continue;
    fail(node.label(), " rule for types: got no element type for output ", k);
  }
  return types;
}

TensorType known_type(const InferContext& c, std::size_t i) {
  TensorType type;
  if (!c.has_input(i)) return type;
  type.dtype = c.dtype(i);
  if (!c.knows_shape(i)) return type;
  type.shape.emplace();
  for (const Dim& d : c.shape(i)) type.shape->emplace_back(d);
  return type;
}

std::vector<Tensor> tensors_of(const ComputeContext& c, std::size_t begin, std::size_t end) {
  std::vector<Tensor> tensors;
  for (std::size_t i = begin; i < end; ++i) tensors.push_back(c.has_input(i) ? c.tensor(i) : Tensor());
  return tensors;
}

bool fits(const TensorType& type, const Tensor& t) {
  if (type.dtype != t.dtype()) return false;
  if (!type.shape) return true;
  if (type.shape->size() != t.dims().size()) return false;
  for (std::size_t i = 0; i < t.dims().size(); ++i) {
    const Extent& e = (*type.shape)[i];
    if (e.is_known() && e.value() != t.dims()[i]) return false;
  }
  return true;
}

Tensor zeros_like(const Tensor& like) {
  Tensor t(like.dtype(), like.dims());
  if (t.bytes() > 0) std::memset(t.mutable_data(), 0, t.bytes());
  return t;
}

}  // namespace

void infer_custom(InferContext& c) {
  std::vector<TensorType> inputs;
  for (std::size_t i = 0; i < c.input_count(); ++i) inputs.push_back(known_type(c, i));
  std::vector<TensorType> types = apply_types(def_of(c.node), c.node, inputs);
  for (std::size_t k = 0; k < c.node.outputs.size(); ++k) {
    if (!c.has_output(k)) continue;
    c.set_dtype(k, types[k].dtype);
    if (!types[k].shape) continue;
    Shape shape;
    for (const Extent& e : *types[k].shape) {
      if (e.is_known() && e.value() < 0) c.fail("rule for types: got extent ", e.value(), " of output ", k);
      shape.push_back(e.dim());
    }
    c.set_shape(k, std::move(shape));
  }
}

void compute_custom(ComputeContext& c) {
  const CustomDef& def = def_of(c.node);
  const std::vector<Tensor> inputs = tensors_of(c, 0, c.inputs.size());
  std::vector<Tensor> results = def.forward(OperatorCall(c.node), inputs);
  c.require(results.size() >= c.node.outputs.size(), "results: got ", results.size(), ", expected ",
            c.node.outputs.size());
  std::vector<TensorType> given;
  given.reserve(inputs.size());
  for (const Tensor& t : inputs) given.push_back(t.dtype() == DType::undefined ? TensorType() : type_of(t));
  const std::vector<TensorType> types = apply_types(def, c.node, given);
  for (std::size_t k = 0; k < c.node.outputs.size(); ++k) {
    if (!c.has_output(k)) continue;
    c.require(fits(types[k], results[k]), "output ", k, ": got ", to_string(type_of(results[k])), ", expected ",
              to_string(types[k]), " as the rule for types says");
    c.outputs[k] = std::move(results[k]);
  }
}

Kernel prepare_custom(PrepareContext& c) {
  const Node& node = c.node;
  auto describe = [](const std::vector<TensorInfo>& infos) {
    std::vector<std::optional<std::pair<DType, Dims>>> types;
    types.reserve(infos.size());
    for (const TensorInfo& info : infos) {
      types.push_back(info.present ? std::optional(std::pair(info.dtype, info.dims)) : std::nullopt);
    }
    return types;
  };
  auto over = [](const auto& types, const void* const* memory) {
    std::vector<Tensor> tensors;
    for (std::size_t i = 0; i < types.size(); ++i) {
      tensors.push_back(types[i] ? Tensor(types[i]->first, types[i]->second, memory[i], nullptr) : Tensor());
    }
    return tensors;
  };
  return [&node, over, inputs = describe(c.inputs), outputs = describe(c.outputs)](const KernelArgs& a) {
    std::vector<Tensor> results = over(outputs, a.outputs);
    def_of(node).kernel(OperatorCall(node), over(inputs, a.inputs), results);
  };
}

void infer_custom_grad(InferContext& c) {
  for (std::size_t i = 0; i < c.node.outputs.size(); ++i) {
    if (!c.has_output(i)) continue;
    c.set_dtype(i, c.dtype(i));
    if (c.knows_shape(i)) c.set_shape(i, c.shape(i));
  }
}

void compute_custom_grad(ComputeContext& c) {
  const auto given = static_cast<std::int64_t>(c.inputs.size());
  const std::int64_t reads = c.node.attr_int(kForwardInputs);
  const std::int64_t writes = c.node.attr_int(kForwardOutputs);
  const bool fits_together = reads >= 0 && reads <= given && writes >= 0 && writes <= given - reads &&
                             given <= reads + 2 * writes && static_cast<std::int64_t>(c.node.outputs.size()) <= reads;
  c.require(fits_together, "inputs and outputs: got ", given, " and ", c.node.outputs.size(),
            ", expected those of the gradient of ", reads, " inputs and ", writes, " outputs");
  const auto inputs = static_cast<std::size_t>(reads);
  const auto outputs = static_cast<std::size_t>(writes);
  const std::vector<Tensor> x = tensors_of(c, 0, inputs);
  const std::vector<Tensor> y = tensors_of(c, inputs, inputs + outputs);
  const std::vector<Tensor> dy = tensors_of(c, inputs + outputs, inputs + 2 * outputs);
  std::vector<Tensor> results = def_of(c.node).derivative->backward(OperatorCall(c.node), x, y, dy);
  results.resize(std::max(results.size(), c.node.outputs.size()));
  for (std::size_t i = 0; i < c.node.outputs.size(); ++i) {
    if (!c.has_output(i)) continue;
    if (results[i].dtype() == DType::undefined) results[i] = zeros_like(x[i]);
    c.require(fits(type_of(x[i]), results[i]), "gradient of input ", i, ": got ", to_string(type_of(results[i])),
              ", expected ", to_string(type_of(x[i])));
    c.outputs[i] = std::move(results[i]);
  }
}

void differentiate_custom(GradientContext& g) { emit_custom_gradient(g, *def_of(g.node).derivative, 0); }

}  // namespace backpass
