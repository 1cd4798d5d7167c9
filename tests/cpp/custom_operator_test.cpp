#include "backpass/custom_operator.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "backpass/gradient.hpp"
#include "backpass/session.hpp"
#include "onnx_io/proto.hpp"
#include "onnx_io/writer.hpp"

namespace backpass {
namespace {

using onnx_io::AttributeProto;
using onnx_io::ModelProto;
using onnx_io::NodeProto;

NodeProto make_node(std::string op, std::string domain, std::vector<std::string> inputs, std::string output) {
  NodeProto node;
  node.op_type = std::move(op);
  node.domain = std::move(domain);
  node.name = output;
  node.input = std::move(inputs);
  node.output = {std::move(output)};
  return node;
}

onnx_io::ValueInfoProto make_info(std::string name, const std::vector<std::string>& shape) {
  onnx_io::ValueInfoProto info;
  info.name = std::move(name);
  info.type.kind = onnx_io::TypeProto::Kind::tensor;
  info.type.elem_type = DType::float64;
  info.type.shape.emplace();
  for (const std::string& extent : shape) {
    onnx_io::DimProto d;
    if (extent.find_first_not_of("0123456789") == std::string::npos) {
      d.value = std::stoll(extent);
    } else {
      d.param = extent;
    }
    info.type.shape->push_back(d);
  }
  return info;
}

/// y = op(tanh(x)), x: [n, 3]
std::string model_of(const std::string& op, std::vector<AttributeProto> attributes = {}) {
  ModelProto model;
  model.ir_version = 10;
  model.opset_import = {{"", 20}, {"test.cpp", 1}};
  model.graph.name = "g";
  model.graph.node = {make_node("Tanh", "", {"x"}, "t"), make_node(op, "test.cpp", {"t"}, "y")};
  model.graph.node[1].attribute = std::move(attributes);
  model.graph.input = {make_info("x", {"n", "3"})};
  onnx_io::ValueInfoProto y;
  y.name = "y";
  model.graph.output = {y};
  return onnx_io::write_model(model);
}

std::string_view bytes(const std::string& model) { return model; }

Tensor numbers(std::int64_t rows) {
  Tensor t(DType::float64, {rows, 3});
  for (std::int64_t i = 0; i < t.size(); ++i) t.as<double>()[i] = 0.3 * static_cast<double>(i) - 0.7;
  return t;
}

std::vector<double> run(const std::string& model, const Tensor& x, std::size_t output = 0, bool reference = false) {
  SessionOptions options;
  options.reference = reference;
  const InferenceSession session(model, nullptr, options);
  return session.run({}, {{"x", x}}).at(output).tensor.to_doubles();
}

void cube_into(const OperatorCall& call, std::span<const Tensor> inputs, std::span<Tensor> outputs) {
  const double scale = call.attribute("scale", 1.0F);
  for (std::int64_t i = 0; i < inputs[0].size(); ++i) {
    const double x = inputs[0].as<double>()[i];
    outputs[0].as<double>()[i] = scale * x * x * x;
  }
}

std::vector<Tensor> cube_of(const OperatorCall& call, std::span<const Tensor> inputs) {
  std::vector<Tensor> outputs = {Tensor(inputs[0].dtype(), inputs[0].dims())};
  cube_into(call, inputs, outputs);
  return outputs;
}

void cube_rule(GradientGraph& g) {
  Value* square = g.mul(g.x(), g.x());
  g.set(0, g.mul(g.number(3.0 * g.call().attribute("scale", 1.0F)), g.mul(g.dy(), square)));
}

std::vector<Tensor> cube_backward(const OperatorCall& call, std::span<const Tensor> inputs, std::span<const Tensor>,
                                  std::span<const Tensor> gradients) {
  const double scale = call.attribute("scale", 1.0F);
  Tensor dx(inputs[0].dtype(), inputs[0].dims());
  for (std::int64_t i = 0; i < dx.size(); ++i) {
    const double x = inputs[0].as<double>()[i];
    dx.as<double>()[i] = 3 * scale * x * x * gradients[0].as<double>()[i];
  }
  return {dx};
}

AttributeProto scale_of(float value) {
  AttributeProto a;
  a.name = "scale";
  a.type = AttributeProto::Type::float_;
  a.f = value;
  return a;
}

void expect_cube(const std::string& op) {
  const std::string model = model_of(op, {scale_of(2)});
  ASSERT_TRUE(check(bytes(model)).empty());
  const std::string gradient = grad(bytes(model), {.wrt = {"x"}, .outputs = {}});
  for (std::int64_t rows : {0, 1, 5}) {
    const Tensor x = numbers(rows);
    for (bool reference : {false, true}) {
      const std::vector<double> y = run(model, x, 0, reference);
      const std::vector<double> dx = run(gradient, x, 1, reference);
      for (std::size_t i = 0; i < y.size(); ++i) {
        const double t = std::tanh(x.as<double>()[i]);
        EXPECT_NEAR(y[i], 2 * t * t * t, 1e-12);
        EXPECT_NEAR(dx[i], 6 * t * t * (1 - t * t), 1e-12);
      }
    }
  }
}

TEST(CustomOperator, KernelAndRule) {
  register_operator({.name = "Cube", .domain = "test.cpp", .kernel = cube_into, .gradient = cube_rule});
  expect_cube("Cube");
  const InferenceSession session(model_of("Cube"), nullptr);
  EXPECT_EQ(session.plan({{"x", numbers(4)}}).late_steps, 0);
}

TEST(CustomOperator, FunctionAndNumbers) {
  register_operator({.name = "CubeFunction", .domain = "test.cpp", .forward = cube_of, .backward = cube_backward});
  expect_cube("CubeFunction");
}

TEST(CustomOperator, SecondDerivativesComeFromRules) {
  register_operator({.name = "CubeTwice", .domain = "test.cpp", .kernel = cube_into, .gradient = cube_rule});
  const std::string second = grad(bytes(grad(bytes(model_of("CubeTwice")), {.wrt = {"x"}, .outputs = {}})),
                                  {.wrt = {"x"}, .outputs = {"x_grad"}});
  const Tensor x = numbers(2);
  const std::vector<double> found = run(second, x, 1);
  for (std::size_t i = 0; i < found.size(); ++i) {  // d/dx of 3 t^2 (1 - t^2)
    const double t = std::tanh(x.as<double>()[i]);
    EXPECT_NEAR(found[i], (6 * t - 12 * t * t * t) * (1 - t * t), 1e-12);
  }
}

TEST(CustomOperator, TypesFollowTheRule) {
  auto types = [](const OperatorCall&, std::span<const TensorType> inputs) {
    TensorType type = inputs[0];
    if (type.shape) type.shape = {{(*type.shape)[0] * 2 + 1, floor_div((*type.shape)[1], 2)}};
    return std::vector{type};
  };
  auto kernel = [](const OperatorCall&, std::span<const Tensor>, std::span<Tensor> outputs) {
    std::fill_n(outputs[0].as<double>(), outputs[0].size(), 4.0);
  };
  register_operator({.name = "Shaped", .domain = "test.cpp", .types = types, .kernel = kernel});
  const InferenceSession session(model_of("Shaped"), nullptr);
  EXPECT_EQ(session.outputs()[0].shape, (std::vector<std::string>{"1+2*n", "1"}));
  EXPECT_EQ(session.run({}, {{"x", numbers(3)}})[0].tensor.dims(), (Dims{7, 1}));
}

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "nothing was thrown";
}

void expect_says(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(CustomOperator, WhatIsIncompleteOrTakenIsRefused) {
  auto attempt = [](CustomOperator op) { return message_of([&] { register_operator(std::move(op)); }); };
  expect_says(attempt({.name = "", .domain = "test.cpp", .kernel = cube_into}), "got no name");
  expect_says(attempt({.name = "A", .domain = "", .kernel = cube_into}), "the standard's domain");
  expect_says(attempt({.name = "A", .domain = "test.cpp"}), "exactly one of forward and kernel");
  expect_says(attempt({.name = "A", .domain = "test.cpp", .forward = cube_of, .kernel = cube_into}), "exactly one");
  expect_says(attempt({.name = "A", .domain = "test.cpp", .inputs = {3, 1}, .kernel = cube_into}), "expected ranges");
  expect_says(
      attempt(
          {.name = "A", .domain = "test.cpp", .kernel = cube_into, .gradient = cube_rule, .backward = cube_backward}),
      "expected one of them");
  register_operator({.name = "B", .domain = "test.cpp", .kernel = cube_into});
  expect_says(attempt({.name = "B", .domain = "test.cpp", .kernel = cube_into}), "replace = true");
  register_operator({.name = "B", .domain = "test.cpp", .kernel = cube_into, .replace = true});
  expect_says(message_of([] { register_gradient({.name = "B", .domain = "test.cpp"}); }), "got none");
  expect_says(message_of([] { unregister("test.cpp", "Never"); }), "nothing is registered");
  unregister("test.cpp", "B");
  EXPECT_FALSE(check(bytes(model_of("B"))).empty());
}

TEST(CustomOperator, ErrorsNameTheNode) {
  register_operator({.name = "Wrong",
                     .domain = "test.cpp",
                     .forward = [](const OperatorCall&, std::span<const Tensor>) { return std::vector<Tensor>(); },
                     .gradient =
                         [](GradientGraph& g) {
                           g.set(0, g.op("Cast", {g.dy()}, {{"to", std::int64_t{1}}}));
                         }});
  const std::string model = model_of("Wrong");
  expect_says(message_of([&] { run(model, numbers(1)); }), "[test.cpp.Wrong 'y'] results: got 0, expected 1");
  expect_says(message_of([&] { grad(bytes(model), {.wrt = {"x"}, .outputs = {}}); }),
              "[test.cpp.Wrong 'y'] gradient of input 0: got float32[n,3], expected float64[n,3]");
  const std::vector<Problem> problems = check_gradients(bytes(model), {.wrt = {"x"}, .outputs = {}});
  ASSERT_EQ(problems.size(), 1U);
}

TEST(CustomOperator, ThreadsRegisterAndRun) {
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([n] {
      for (int i = 0; i < 10; ++i) {
        const std::string name = concat("Thread", n, "_", i);
        register_operator({.name = name, .domain = "test.cpp", .kernel = cube_into, .gradient = cube_rule});
        register_operator({.name = "Everybody", .domain = "test.cpp", .kernel = cube_into, .replace = true});
        expect_cube(name);
        unregister("test.cpp", name);
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace backpass
