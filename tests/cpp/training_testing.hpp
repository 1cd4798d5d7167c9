// Linear regression, whose loss and gradients are exact in float32 and easy by hand.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "backpass/tensor.hpp"
#include "onnx_io_models.hpp"

namespace backpass {

using Floats = std::vector<float>;

inline onnx_io::NodeProto make_node(std::string op, std::vector<std::string> inputs, std::vector<std::string> outputs,
                                    std::vector<onnx_io::AttributeProto> attributes = {}) {
  onnx_io::NodeProto node;
  node.op_type = std::move(op);
  node.name = outputs.at(0);
  node.input = std::move(inputs);
  node.output = std::move(outputs);
  node.attribute = std::move(attributes);
  return node;
}

inline onnx_io::AttributeProto make_int(std::string name, std::int64_t value) {
  onnx_io::AttributeProto a = onnx_io::make_attribute(std::move(name), onnx_io::AttributeProto::Type::int_);
  a.i = value;
  return a;
}

/// A float32 input; a negative extent is the symbol "n".
inline onnx_io::ValueInfoProto make_info(std::string name, const std::vector<std::int64_t>& dims) {
  std::vector<onnx_io::DimProto> shape;
  for (std::int64_t d : dims) {
    onnx_io::DimProto& extent = shape.emplace_back();
    if (d < 0) {
      extent.param = "n";
    } else {
      extent.value = d;
    }
  }
  return {std::move(name), onnx_io::make_tensor_type(DType::float32, std::move(shape)), "", {}};
}

/// loss = mean((x @ w + b - t)^2); x: [n,2], t: [n,1], w: [2,1] and b: [1] initializers.
inline onnx_io::ModelProto regression_model() {
  onnx_io::ModelProto model = onnx_io::make_model();
  model.graph.input = {make_info("x", {-1, 2}), make_info("t", {-1, 1})};
  model.graph.initializer = {onnx_io::make_tensor<float>("w", DType::float32, {2, 1}, {1, -1}),
                             onnx_io::make_tensor<float>("b", DType::float32, {1}, {0.5F})};
  model.graph.node = {make_node("MatMul", {"x", "w"}, {"z"}), make_node("Add", {"z", "b"}, {"y"}),
                      make_node("Sub", {"y", "t"}, {"d"}), make_node("Mul", {"d", "d"}, {"square"}),
                      make_node("ReduceMean", {"square"}, {"loss"}, {make_int("keepdims", 0)})};
  model.graph.output = {make_info("loss", {})};
  return model;
}

inline Tensor floats(Dims dims, const Floats& values) {
  return Tensor::from<float>(DType::float32, std::move(dims), values);
}

inline Floats numbers_in(const Tensor& t) { return {t.as<float>(), t.as<float>() + t.size()}; }

/// Two rows: y = (-0.5, 4.5), d = (-0.5, 3.5), loss 6.25, gradients of w (10, -4.5) and of b 3.
struct Regression {
  Tensor x = floats({2, 2}, {1, 2, 3, -1});
  Tensor t = floats({2, 1}, {0, 1});
  Tensor w = floats({2, 1}, {1, -1});
  Tensor b = floats({1}, {0.5F});
};

}  // namespace backpass
