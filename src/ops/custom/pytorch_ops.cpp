// Operators that PyTorch runs: user functions (torch.autograd.Function) and aten operators without a counterpart here.
//
//   com.microsoft.PythonOp      func_name: module + "." + qualified name of the class ("#2" for a namesake)
//   org.pytorch.aten.ATen       operator ("gelu", "torchvision::nms"), overload_name
//   com.microsoft.PythonOpGrad, org.pytorch.aten.ATenGrad: their gradients, with the attributes of the forward node
//
// All have one layout:
//   inputs    `tensor_inputs` tensors, then per output its extents as 1-D int64, where they are known beforehand
//   outputs   one tensor per entry of `output_types` (ONNX codes); a forward node may have one more, the context
//   arguments JSON that says how tensors and other arguments are put together (python/backpass/torch/arguments.py)
//   input_requires_grads: one flag per tensor, given when there is a context
// A gradient node reads the context and the gradients of the outputs, and gives one gradient per tensor of the forward
// node. The context is added by the gradient rule, so a forward pass without gradients leaves no trace in PyTorch.
#include <cstring>

#include "gradient/forward_output.hpp"
#include "gradient/rule.hpp"
#include "graph/builder.hpp"
#include "graph/infer.hpp"
#include "graph/op.hpp"
#include "ops/custom/callback.hpp"

namespace backpass {
namespace {

struct Layout {
  std::size_t tensors;
  std::vector<DType> outputs;
  bool has_context;

  std::size_t extents_of(std::size_t k) const { return tensors + k; }  // the input that holds them
};

bool is_forward(const Node& node) { return node.op == "PythonOp" || node.op == "ATen"; }

Layout layout_of(const Node& node) {
  if (!node.has_attribute("tensor_inputs") || !node.has_attribute("output_types")) {
    fail<Unsupported>(node.label(),
                      " attributes tensor_inputs and output_types: got none, expected what "
                      "backpass.torch writes; export the model with it");
  }
  std::int64_t tensors = node.attr_int("tensor_inputs");
  Layout layout{static_cast<std::size_t>(tensors), {}, false};
  for (std::int64_t code : node.attr_ints("output_types")) {
    if (code < 0 || !is_known_dtype(static_cast<int>(code))) {
      fail(node.label(), " output_types: got ", code, ", expected codes of ONNX element types");
    }
    layout.outputs.push_back(static_cast<DType>(code));
  }
  const std::size_t count = layout.outputs.size();
  layout.has_context = is_forward(node) && node.output(count) != nullptr;
  const std::size_t most = count + (is_forward(node) ? 1 : 0);
  if (tensors < 0 || node.outputs.size() > most || node.inputs.size() > layout.tensors + count) {
    fail(node.label(), " inputs and outputs: got ", node.inputs.size(), " and ", node.outputs.size(), ", expected ",
         tensors, " tensors and at most ", count, " outputs with their extents");
  }
  if (layout.has_context && node.attr_ints("input_requires_grads").size() != layout.tensors) {
    fail(node.label(), " input_requires_grads: got ", node.attr_ints("input_requires_grads").size(), ", expected ",
         tensors);
  }
  return layout;
}

void infer(InferContext& c) {
  const Layout layout = layout_of(c.node);
  const std::size_t count = layout.outputs.size();
  for (std::size_t k = 0; k < count; ++k) {
    c.set_dtype(k, layout.outputs[k]);
    if (auto extents = c.maybe_ints(layout.extents_of(k))) c.set_shape(k, Shape(extents->begin(), extents->end()));
  }
  if (layout.has_context) c.set(count, DType::int64, {});
}

Tensor zeros(DType dtype, Dims dims) {
  Tensor t(dtype, std::move(dims));
  if (t.bytes() > 0) std::memset(t.mutable_data(), 0, t.bytes());
  return t;
}

/// What came back has the type that was promised; a gradient that PyTorch says is nothing becomes zeros.
void settle_output(ComputeContext& c, const Layout& layout, std::size_t k) {
  RuntimeValue& result = c.outputs[k];
  const std::size_t extents = layout.extents_of(k);
  std::optional<Dims> promised;
  if (c.has_input(extents)) promised = c.tensor(extents).to_ints();
  if (!result.is_tensor() && promised && !is_forward(c.node)) result = zeros(layout.outputs[k], *promised);
  c.require(result.is_tensor(), "output ", k, ": got none, expected a tensor of ", name_of(layout.outputs[k]));
  const Tensor& t = result.tensor;
  c.require(t.dtype() == layout.outputs[k] && (!promised || t.dims() == *promised), "output ", k, ": got ",
            name_of(t.dtype()), shown(t.dims()), ", expected ", name_of(layout.outputs[k]),
            promised ? to_string(*promised) : std::string(" of any shape"), " as when the model was exported");
}

void compute(ComputeContext& c) {
  const Layout layout = layout_of(c.node);
  run_torch_callback(c);
  for (std::size_t k = 0; k < layout.outputs.size(); ++k) {
    if (c.has_output(k)) settle_output(c, layout, k);
  }
  if (!layout.has_context) return;
  c.require(c.outputs.at(layout.outputs.size()).is_tensor(), "context: got none, expected one");
}

/// Adds the context to the forward node, and notes which of its tensors want a gradient.
Value* request_context(GradientContext& g, const Layout& layout) {
  Value* context = forward_output(g, layout.outputs.size(), Type::tensor(DType::int64, Shape{}));
  std::vector<std::int64_t> flags = g.node.attr_ints("input_requires_grads");
  flags.resize(layout.tensors, 0);
  for (std::size_t i = 0; i < layout.tensors; ++i) {
    if (g.wants(i)) flags[i] = 1;
  }
  forward_node(g).attributes.insert_or_assign("input_requires_grads", flags);
  return context;
}

void gradient(GradientContext& g) {
  const Layout layout = layout_of(g.node);
  std::vector<Value*> reads = {request_context(g, layout)};
  for (std::size_t k = 0; k < layout.outputs.size(); ++k) reads.push_back(g.has_dy(k) ? g.dy(k) : nullptr);
  std::vector<Value*> writes(layout.tensors, nullptr);
  std::vector<std::int64_t> types;
  const std::string name = g.node.name + "_Grad/" + g.node.op + "Grad";
  for (std::size_t i = 0; i < layout.tensors; ++i) {
    const bool wanted = g.wants(i);
    reads.push_back(wanted ? g.shape_of(g.x(i)) : nullptr);
    if (wanted) writes[i] = g.b.graph.add_value(name);
    types.push_back(static_cast<std::int64_t>(wanted ? g.x(i)->type.dtype : DType::float32));
  }
  const std::size_t tensors = 1 + layout.outputs.size();
  while (reads.size() > tensors && reads.back() == nullptr) reads.pop_back();
  Node* node = g.b.graph.add_node(g.node.op + "Grad", std::move(reads), writes, name, g.node.domain);
  node->attributes = g.node.attributes;
  node->attributes.insert_or_assign("tensor_inputs", static_cast<std::int64_t>(tensors));
  node->attributes.insert_or_assign("output_types", types);
  infer_node(g.b.graph, *node);
  for (std::size_t i = 0; i < layout.tensors; ++i) {
    if (writes[i] != nullptr) g.set(i, writes[i]);
  }
}

OpDef definition(std::string_view domain, std::string_view name, std::string_view doc, void (*rule)(GradientContext&)) {
  return {.name = name,
          .domain = domain,
          .doc = doc,
          .inputs = {0, -1},
          .outputs = {1, -1},
          .types = {},
          .infer = infer,
          .compute = compute,
          .gradient = rule,
          .is_random = true};  // a function may do anything: it is run once, in its place, even on constants
}

const Register kPythonOp(definition("com.microsoft", "PythonOp", "a torch.autograd.Function, run by PyTorch",
                                    gradient));
const Register kPythonOpGrad(definition("com.microsoft", "PythonOpGrad",
                                        "the backward method of a torch.autograd.Function, run by PyTorch", nullptr));
const Register kATen(definition("org.pytorch.aten", "ATen", "an aten operator, run by PyTorch", gradient));
const Register kATenGrad(definition("org.pytorch.aten", "ATenGrad", "the gradient of an aten operator, run by PyTorch",
                                    nullptr));

void refuse(Builder&, Node& node) {
  fail<Unsupported>(
      node.label(), " operator: got ", node.domain, ".", node.op,
      ", which hands control to PyTorch; export the model without it, or run it through the PyTorch front end");
}

constexpr int kAnyVersion = 1 << 20;
const RegisterAdapter aten{{.op = "ATen", .below = kAnyVersion, .lift = refuse, .domain = "com.microsoft"}};

}  // namespace
}  // namespace backpass
