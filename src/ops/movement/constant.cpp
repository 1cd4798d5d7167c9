// Constant: a value written in the model. The importer normally turns these into constant values of the graph.
#include <algorithm>

#include "graph/op.hpp"
#include "kernels/strided_copy.hpp"
#include "ops/movement/movement.hpp"

namespace backpass {
namespace {

/// Whichever of the value attributes the node has, as a tensor. The importer has made sparse values dense.
Tensor value_of(const Node& node) {
  if (const Tensor* t = node.attr_tensor("value")) return *t;
  if (const Tensor* t = node.attr_tensor("sparse_value")) return *t;
  if (node.has_attribute("value_int")) return Tensor::scalar_int(node.attr_int("value_int"));
  if (node.has_attribute("value_float")) return Tensor::scalar_float(node.attr_float("value_float", 0));
  if (node.has_attribute("value_ints")) return Tensor::ints(node.attr_ints("value_ints"));
  if (node.has_attribute("value_floats")) {
    std::vector<float> values = node.attr_floats("value_floats");
    return Tensor::from<float>(DType::float32, {static_cast<std::int64_t>(values.size())}, values);
  }
  if (node.has_attribute("value_string")) {
    std::string text = node.attr_string("value_string");
    return Tensor::from<std::string>(DType::string, {}, {&text, 1});
  }
  if (node.has_attribute("value_strings")) {
    std::vector<std::string> values = node.attr_strings("value_strings");
    return Tensor::from<std::string>(DType::string, {static_cast<std::int64_t>(values.size())}, values);
  }
  fail(node.label(),
       " has no value: expected one of value, value_int(s), value_float(s), value_string(s), sparse_value");
}

void infer(InferContext& c) {
  Tensor value = value_of(c.node);
  c.set(0, value.dtype(), to_shape(value.dims()));
  if (value.rank() > 1 || !(is_integer(value.dtype()) || value.dtype() == DType::boolean)) return;
  std::vector<std::int64_t> values = value.to_ints();
  movement::set_ints(c, 0, {values.begin(), values.end()});
}

Kernel prepare(PrepareContext& c) {
  Tensor value = value_of(c.node);
  return [value](const KernelArgs& args) {
    kernels::copy_elements(value.dtype(), value.data(), args.outputs[0], value.size());
  };
}

const Register constant{{.name = "Constant",
                         .since = 25,
                         .doc = "A value written in the model: tensor, number, text or list.",
                         .inputs = {0, 0},
                         .types = movement::any_type,
                         .infer = infer,
                         .prepare = prepare}};

}  // namespace
}  // namespace backpass
