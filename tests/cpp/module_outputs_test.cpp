#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backpass/custom_operator.hpp"
#include "onnx_io/proto.hpp"
#include "onnx_io/writer.hpp"
#include "training/module_session.hpp"

namespace backpass {
namespace {

using onnx_io::ModelProto;

onnx_io::NodeProto node(std::string op, std::string domain, std::vector<std::string> inputs, std::string output) {
  onnx_io::NodeProto made;
  made.op_type = std::move(op);
  made.domain = std::move(domain);
  made.name = output;
  made.input = std::move(inputs);
  made.output = {std::move(output)};
  return made;
}

onnx_io::ValueInfoProto vector_of_two(std::string name) {
  onnx_io::ValueInfoProto info;
  info.name = std::move(name);
  info.type.kind = onnx_io::TypeProto::Kind::tensor;
  info.type.elem_type = DType::float32;
  info.type.shape.emplace();
  info.type.shape->emplace_back().value = 2;
  return info;
}

onnx_io::ValueInfoProto untyped(std::string name) {
  onnx_io::ValueInfoProto info;
  info.name = std::move(name);
  return info;
}

/// y = Double(x * w), kept = x + w, sign = w < x
std::string model() {
  ModelProto model;
  model.ir_version = 10;
  model.opset_import = {{"", 20}, {"test.module", 1}};
  model.graph.name = "g";
  model.graph.node = {node("Mul", "", {"x", "w"}, "m"), node("Double", "test.module", {"m"}, "y"),
                      node("Add", "", {"x", "w"}, "kept"), node("Less", "", {"w", "x"}, "sign")};
  model.graph.input = {vector_of_two("x"), vector_of_two("w")};
  model.graph.output = {untyped("y"), untyped("kept"), untyped("sign")};
  return onnx_io::write_model(model);
}

/// Counts how often the types of its results are asked for.
int types_asked = 0;

void register_double(float factor) {
  auto kernel = [factor](const OperatorCall&, std::span<const Tensor> inputs, std::span<Tensor> outputs) {
    for (std::int64_t i = 0; i < inputs[0].size(); ++i) {
      outputs[0].as<float>()[i] = factor * inputs[0].as<float>()[i];
    }
  };
  auto types = [](const OperatorCall&, std::span<const TensorType> given) {
    ++types_asked;
    return std::vector<TensorType>{given[0]};
  };
  auto gradient = [factor](GradientGraph& g) { g.set(0, g.mul(g.number(factor), g.dy())); };
  register_operator({.name = "Double",
                     .domain = "test.module",
                     .types = types,
                     .kernel = kernel,
                     .gradient = gradient,
                     .replace = true});
}

Tensor pair(float a, float b) {
  Tensor t(DType::float32, {2});
  t.as<float>()[0] = a;
  t.as<float>()[1] = b;
  return t;
}

std::vector<double> gradient(ModuleSession& session, std::vector<RuntimeValue> seeds) {
  std::vector<RuntimeValue> outputs;
  auto pending = session.forward({pair(1, 2), pair(3, 4)}, outputs);
  return session.backward(pending, seeds).at(0).tensor.to_doubles();
}

struct ModuleOutputs : ::testing::Test {
  std::string bytes = model();

  ModuleSession open(const std::vector<std::string>& constant = {}) {
    register_double(2);
    types_asked = 0;
    return {bytes, nullptr, {"w"}, SessionOptions(), constant};
  }
};

TEST_F(ModuleOutputs, ImportsTheModelOnce) {
  ModuleSession session = open();
  const int once = types_asked;
  session.training_model();
  EXPECT_EQ(types_asked, once);
  EXPECT_EQ(gradient(session, {pair(1, 1), pair(0, 0), {}}), (std::vector<double>{2, 4}));
}

TEST_F(ModuleOutputs, KeepsTheOperatorsItWasOpenedWith) {
  ModuleSession session = open();
  register_double(5);
  EXPECT_EQ(gradient(session, {pair(1, 1), {}, {}}), (std::vector<double>{2, 4}));  // a graph that was not built before
}

TEST_F(ModuleOutputs, ConstantOutputsAreNotDifferentiated) {
  ModuleSession session = open({"kept"});
  EXPECT_EQ(session.differentiable_outputs(), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(gradient(session, {pair(1, 1), pair(100, 100), {}}), (std::vector<double>{2, 4}));
  EXPECT_EQ(session.outputs().at(1).name, "kept");
}

TEST_F(ModuleOutputs, SaysWhatAnOutputDependsOn) {
  const ModuleSession session = open({"kept"});
  EXPECT_EQ(session.depends_on("y"), std::vector<std::string>{"w"});
  EXPECT_EQ(session.depends_on("kept"), std::vector<std::string>{"w"});
  EXPECT_TRUE(session.depends_on("sign").empty());
}

TEST_F(ModuleOutputs, NamesOfNoOutputAreRefused) {
  EXPECT_THROW(open({"keep"}), InvalidInput);
  EXPECT_THROW(open().depends_on("keep"), InvalidInput);
}

}  // namespace
}  // namespace backpass
