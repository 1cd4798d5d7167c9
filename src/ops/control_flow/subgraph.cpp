#include "ops/control_flow/subgraph.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "graph/evaluate.hpp"
#include "graph/infer.hpp"

namespace backpass {
namespace {

struct Facts {
  Type type;
  const Tensor* constant = nullptr;
  std::optional<std::vector<Dim>> ints;
};

using KnownFacts = std::unordered_map<const Value*, Facts>;

Facts facts_of(const Value& value) { return {value.type, value.constant ? &*value.constant : nullptr, value.ints}; }

// Runs one node's rule on what is known of its inputs.
void infer_inner(const Node& node, KnownFacts& known) {
  if (node.def == nullptr) return;
  std::vector<const Type*> types;
  std::vector<const Tensor*> constants;
  std::vector<const std::vector<Dim>*> ints;
  for (const Value* input : node.inputs) {
    const Facts* facts = input == nullptr ? nullptr : &known.try_emplace(input, facts_of(*input)).first->second;
    types.push_back(facts == nullptr ? nullptr : &facts->type);
    constants.push_back(facts == nullptr ? nullptr : facts->constant);
    ints.push_back(facts == nullptr || !facts->ints ? nullptr : &*facts->ints);
  }
  InferContext context(node, std::move(types), std::move(constants), std::move(ints));
  run_infer_rule(context);
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == nullptr || i >= context.outputs.size()) continue;
    Facts facts{std::move(context.outputs[i]), nullptr, std::nullopt};
    if (facts.type.kind == Type::Kind::unknown) facts.type = node.outputs[i]->type;
    if (i < context.output_ints.size()) facts.ints = std::move(context.output_ints[i]);
    known.insert_or_assign(node.outputs[i], std::move(facts));
  }
}

// Combines two types of the same value. `extent` decides what two unequal
// extents become.
template <class Extent>
Type combined(InferContext& context, const Type& a, const Type& b, const Extent& extent) {
  if (a.kind == Type::Kind::unknown) return b;
  if (b.kind == Type::Kind::unknown) return a;
  const bool a_optional = a.kind == Type::Kind::optional;
  const bool b_optional = b.kind == Type::Kind::optional;
  if (a_optional || b_optional)
    return Type::optional(combined(context, a_optional ? *a.element : a, b_optional ? *b.element : b, extent));
  const bool comparable = a.kind == b.kind && (a.kind != Type::Kind::tensor || a.dtype == b.dtype ||
                                               a.dtype == DType::undefined || b.dtype == DType::undefined);
  context.require(comparable, "two values that must have one type: got ", shown(a), " and ", shown(b));
  if (a.kind == Type::Kind::sequence) return Type::sequence(combined(context, *a.element, *b.element, extent));
  const DType dtype = a.dtype == DType::undefined ? b.dtype : a.dtype;
  if (!a.shape || !b.shape || a.shape->size() != b.shape->size()) return Type::tensor(dtype);
  Shape shape;
  for (std::size_t i = 0; i < a.shape->size(); ++i) {
    const Dim& left = (*a.shape)[i];
    const Dim& right = (*b.shape)[i];
    shape.push_back(left == right ? left : extent(left, right, i));
  }
  return Type::tensor(dtype, std::move(shape));
}

bool same_type(const Type& a, const Type& b) {
  if (a.kind != b.kind || a.dtype != b.dtype || a.shape.has_value() != b.shape.has_value()) return false;
  if (a.shape && !(*a.shape == *b.shape)) return false;
  if ((a.element == nullptr) != (b.element == nullptr)) return false;
  return a.element == nullptr || same_type(*a.element, *b.element);
}

using Symbols = std::map<std::string, Dim>;

// A symbol for "whatever this iteration has" means nothing after the loop: the
// extent gets a new one there.
Type escaped(InferContext& context, const Type& type, const Symbols& loose, std::size_t output) {
  Type out = type;
  for (std::size_t i = 0; out.shape && i < out.shape->size(); ++i) {
    Dim& dim = (*out.shape)[i];
    if (!(dim.substituted(loose) == dim)) dim = context.data_dependent(concat("after_loop", output, "_", i));
  }
  if (out.element) out.element = std::make_shared<const Type>(escaped(context, *out.element, loose, output));
  return out;
}

// One round: what the variables are before an iteration that may be the first
// or any later one.
bool widen(InferContext& context, std::vector<Type>& types, const std::vector<Type>& after, Symbols& loose) {
  bool stable = true;
  auto extent = [&](const Dim& before, const Dim&, std::size_t) {
    if (auto name = before.symbol_name(); name && loose.contains(*name)) return before;
    Dim fresh = context.data_dependent("varying");
    if (auto name = fresh.symbol_name()) loose.emplace(*name, Dim(0));
    return fresh;
  };
  for (std::size_t i = 0; i < types.size(); ++i) {
    Type next = combined(context, types[i], after[i], extent);
    // A full optional is its content, so a variable may start as an optional
    // and go on as what it holds.
    if (types[i].kind != Type::Kind::optional && next.kind == Type::Kind::optional) next = types[i];
    if (same_type(next, types[i])) continue;
    stable = false;
    types[i] = std::move(next);
  }
  return stable;
}

}  // namespace

const Graph& body_of(const Node& node, std::string_view attribute, std::int64_t inputs, std::int64_t outputs) {
  const Graph* body = node.subgraph(attribute);
  if (body == nullptr) fail(node.label(), " attribute '", attribute, "': missing, expected a graph");
  if (inputs >= 0 && static_cast<std::int64_t>(body->inputs.size()) != inputs)
    fail(node.label(), " inputs of '", attribute, "': got ", body->inputs.size(), ", expected ", inputs);
  if (outputs >= 0 && static_cast<std::int64_t>(body->outputs.size()) != outputs)
    fail(node.label(), " outputs of '", attribute, "': got ", body->outputs.size(), ", expected ", outputs);
  return *body;
}

void elaborate_body(const Node& node, std::string_view attribute, std::vector<Type> inputs) {
  body_of(node, attribute);
  auto has_key = [&](const auto& entry) { return entry.first == attribute; };
  Graph& body = *std::find_if(node.subgraphs.begin(), node.subgraphs.end(), has_key)->second;
  auto is_raw = [](const Node* inner) { return inner->opset != 0; };
  if (std::none_of(body.nodes().begin(), body.nodes().end(), is_raw)) return;
  for (std::size_t i = 0; i < body.inputs.size() && i < inputs.size(); ++i)
    if (inputs[i].kind != Type::Kind::unknown) body.inputs[i]->type = std::move(inputs[i]);
  throw_if_any(infer_graph(body));
  body.remove_dead_nodes();
}

std::vector<Type> infer_body(const Node& node, std::string_view attribute, std::vector<Type> inputs) {
  elaborate_body(node, attribute, inputs);
  const Graph& body = body_of(node, attribute);
  KnownFacts known;
  for (const Capture& capture : body.captures) known.insert_or_assign(capture.inner, facts_of(*capture.outer));
  for (std::size_t i = 0; i < body.inputs.size() && i < inputs.size(); ++i) {
    if (inputs[i].kind == Type::Kind::unknown) inputs[i] = body.inputs[i]->type;
    known.insert_or_assign(body.inputs[i], Facts{std::move(inputs[i]), nullptr, std::nullopt});
  }
  for (const Node* inner : body.nodes()) infer_inner(*inner, known);
  std::vector<Type> outputs;
  for (const Value* output : body.outputs) {
    auto found = known.find(output);
    outputs.push_back(found == known.end() ? output->type : found->second.type);
  }
  return outputs;
}

Type merged(InferContext& context, const Type& a, const Type& b, std::size_t number) {
  return combined(context, a, b, [&](const Dim&, const Dim&, std::size_t axis) {
    return context.data_dependent(concat("varying", number, "_", axis));
  });
}

Type one_of(InferContext& context, const Type& element, std::size_t number) {
  Type type = element;
  if (!type.shape) return type;
  for (std::size_t i = 0; i < type.shape->size(); ++i) {
    Dim& dim = (*type.shape)[i];
    if (dim.str().find('@') != std::string::npos) dim = context.data_dependent(concat("element", number, "_", i));
  }
  return type;
}

Type without_shapes(const Type& type) {
  Type out = type;
  out.shape.reset();
  if (out.element) out.element = std::make_shared<const Type>(without_shapes(*out.element));
  return out;
}

IterationTypes iteration_types(InferContext& context, std::vector<Type> initial, std::size_t first,
                               const std::function<std::vector<Type>(const std::vector<Type>&)>& call) {
  constexpr int kRounds = 8;
  std::vector<Type> types = std::move(initial);
  std::vector<Type> outputs;
  Symbols loose;
  for (int round = 0; round <= kRounds; ++round) {
    if (round == kRounds) std::transform(types.begin(), types.end(), types.begin(), without_shapes);
    outputs = call(types);
    const auto begin = outputs.begin() + static_cast<std::ptrdiff_t>(first);
    if (widen(context, types, {begin, begin + static_cast<std::ptrdiff_t>(types.size())}, loose)) break;
  }
  IterationTypes result;
  for (std::size_t i = 0; i < types.size(); ++i) {
    const bool unwrapped = types[i].kind == Type::Kind::optional && outputs[first + i].kind != Type::Kind::optional;
    result.variables.push_back(escaped(context, unwrapped ? outputs[first + i] : types[i], loose, first + i));
  }
  for (std::size_t i = first + types.size(); i < outputs.size(); ++i)
    result.others.push_back(escaped(context, outputs[i], loose, i));
  return result;
}

void learn_symbols(const Type& input, const Dims& dims, SymbolValues& known) {
  if (!input.is_tensor() || !input.shape || input.shape->size() != dims.size()) return;
  for (std::size_t i = 0; i < dims.size(); ++i)
    if (auto name = (*input.shape)[i].symbol_name()) known.emplace(*name, Dim(dims[i]));
}

Tensor empty_scan_output(const Type& element, std::size_t axis, const SymbolValues& known) {
  Dims dims;
  if (element.shape) {
    for (const Dim& dim : *element.shape) {
      const Dim extent = dim.substituted(known);
      dims.push_back(extent.is_known() ? std::max<std::int64_t>(extent.value(), 0) : 0);
    }
  }
  dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(std::min(axis, dims.size())), 0);
  return {element.dtype, std::move(dims)};
}

bool is_truth(const Tensor& tensor) { return tensor.dtype() == DType::boolean && tensor.size() == 1; }

bool truth(const ComputeContext& context, const RuntimeValue& value, std::string_view what) {
  context.require(value.is_tensor() && is_truth(value.tensor), what, ": got ", shown(type_of(value)),
                  ", expected a bool tensor with one element");
  return *value.tensor.as<bool>();
}

}  // namespace backpass
