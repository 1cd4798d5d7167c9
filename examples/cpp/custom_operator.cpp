// A custom operator in C++: `custom_operator model.onnx input` registers example.Swish, runs the model on
// numbers from -1 to 1, and prints its first output and the gradient of that output's sum with respect to the input.
#include <backpass/custom_operator.hpp>
#include <backpass/gradient.hpp>
#include <backpass/session.hpp>
#include <cmath>
#include <cstdint>
#include <exception>
#include <iomanip>
#include <iostream>
#include <span>
#include <string>
#include <vector>

namespace {

using backpass::GradientGraph;
using backpass::OperatorCall;
using backpass::Tensor;

/// x / (1 + exp(-alpha x))
void swish(const OperatorCall& call, std::span<const Tensor> inputs, std::span<Tensor> outputs) {
  const float alpha = call.attribute("alpha", 1.0F);
  const auto* x = inputs[0].as<float>();
  auto* y = outputs[0].as<float>();
  for (std::int64_t i = 0; i < inputs[0].size(); ++i) y[i] = x[i] / (1 + std::exp(-alpha * x[i]));
}

/// dy (s + alpha y (1 - s)) with s = sigmoid(alpha x), written in operators of the standard.
void swish_gradient(GradientGraph& g) {
  auto* alpha = g.number(g.call().attribute("alpha", 1.0F));
  auto* s = g.op("Sigmoid", {g.mul(alpha, g.x())});
  auto* slope = g.add(s, g.mul(alpha, g.mul(g.y(), g.sub(g.number(1), s))));
  g.set(0, g.mul(g.dy(), slope));
}

void refuse_all_but_floats(std::span<const backpass::TensorType> inputs) {
  if (inputs[0].dtype != backpass::DType::float32) throw backpass::Unsupported("Swish: expected float32");
}

void register_swish() {
  backpass::CustomOperator op;
  op.name = "Swish";
  op.domain = "example";
  op.types = [](const OperatorCall&, std::span<const backpass::TensorType> inputs) {
    refuse_all_but_floats(inputs);
    return std::vector(inputs.begin(), inputs.end());
  };
  op.kernel = swish;
  op.gradient = swish_gradient;
  backpass::register_operator(std::move(op));
}

Tensor numbers(const backpass::ValueInfo& input) {
  backpass::Dims dims;
  for (const std::string& extent : input.shape) dims.push_back(std::stoll(extent));
  Tensor tensor(backpass::DType::float32, dims);
  const auto last = static_cast<float>(tensor.size() - 1);
  for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.as<float>()[i] = -1 + 2 * static_cast<float>(i) / last;
  return tensor;
}

void print(const char* name, const Tensor& tensor) {
  std::cout << name;
  for (float v : tensor.values<float>()) std::cout << " " << std::setprecision(9) << v;
  std::cout << "\n";
}

void run(const std::string& path, const std::string& input) {
  register_swish();
  backpass::GradientRequest request;
  request.wrt = {input};
  const std::string model = backpass::grad(std::filesystem::path(path), request);
  const backpass::InferenceSession session(model, nullptr);
  const auto results = session.run({}, {{input, numbers(session.inputs().at(0))}});
  print("output", results.front().tensor);
  print("gradient", results.back().tensor);
}

}  // namespace

int main(int argc, char** argv) {
  const std::span arguments(argv, static_cast<std::size_t>(argc));
  if (argc < 3) {
    std::cerr << "usage: custom_operator model.onnx input\n";
    return 2;
  }
  try {
    run(arguments[1], arguments[2]);
    return 0;
  } catch (const std::exception& e) {  // backpass::InvalidInput, Unsupported: the message says what to do
    std::cerr << e.what() << "\n";
    return 1;
  }
}
