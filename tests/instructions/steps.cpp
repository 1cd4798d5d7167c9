// Small steps whose instructions check.py counts. Extents are tiny: next to nothing of it is arithmetic, so that what
// is counted is what a step costs whatever its size. Each piece of work is done by counted(), after some steps that
// make what is made once; the number of times and the name are printed, in order.
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../cpp/training_testing.hpp"
#include "backpass/trainer.hpp"
#include "onnx_io/writer.hpp"
#include "support/parallel.hpp"
#include "training/module_session.hpp"
#include "training/optimizer_pass.hpp"

using Work = std::function<void()>;

constexpr int kWarmUp = 40;  // more than the runs after which memory of unused graphs is given back
constexpr int kTimes = 20;

// By its name callgrind knows it.
extern "C" [[gnu::noinline]] void counted(const Work& work) {
  for (int i = 0; i < kTimes; ++i) work();
}

namespace backpass {
namespace {

void count(const char* name, const Work& work) {
  for (int i = 0; i < kWarmUp; ++i) work();
  counted(work);
  std::printf("%d %s\n", kTimes, name);
}

using Names = std::vector<std::string>;
using Values = std::vector<RuntimeValue>;

onnx_io::ValueInfoProto labels_info() {
  onnx_io::ValueInfoProto info = make_info("labels", {2});
  info.type.elem_type = DType::int64;
  return info;
}

struct Parameter {
  const char* name;
  Dims dims;
};

const std::vector<Parameter> kPerceptron = {{"w0", {4, 4}}, {"b0", {4}}, {"w1", {4, 4}}, {"b1", {4}}};

Tensor filled(const Dims& dims) { return floats(dims, Floats(static_cast<std::size_t>(element_count(dims)), 0.5F)); }

/// Two layers and a loss over two rows.
onnx_io::ModelProto perceptron() {
  onnx_io::ModelProto model = onnx_io::make_model();
  model.graph.input = {make_info("x", {2, 4}), labels_info()};
  model.graph.node = {make_node("Gemm", {"x", "w0", "b0"}, {"h"}, {make_int("transB", 1)}),
                      make_node("Relu", {"h"}, {"r"}),
                      make_node("Gemm", {"r", "w1", "b1"}, {"scores"}, {make_int("transB", 1)}),
                      make_node("SoftmaxCrossEntropyLoss", {"scores", "labels"}, {"loss"})};
  model.graph.output = {make_info("loss", {})};
  return model;
}

Values perceptron_batch() {
  const std::vector<std::int64_t> labels = {1, 3};
  return {filled({2, 4}), Tensor::from<std::int64_t>(DType::int64, {2}, labels)};
}

SessionOptions one_thread() {
  SessionOptions options;
  options.num_threads = 1;
  return options;
}

/// Forward, backward and AdamW by the trainer.
void native_step() {
  onnx_io::ModelProto model = perceptron();
  for (const Parameter& p : kPerceptron) {
    const Tensor values = filled(p.dims);
    model.graph.initializer.push_back(onnx_io::make_tensor<float>(p.name, DType::float32, p.dims, numbers_in(values)));
  }
  const ModelSource source = ModelSource::from_bytes(onnx_io::write_model(model));
  TrainerOptions options;
  options.session = one_thread();
  Trainer trainer(Trainer::state_of(source, "loss"), options);
  const std::size_t program = trainer.add_model({source, "loss", {"loss"}, {}});
  const Values batch = perceptron_batch();
  count("native step of a perceptron", [&] { trainer.train_step(program, batch, 1e-3); });
}

void step_of(const char* name, const onnx_io::ModelProto& model, const Names& parameters, const Values& inputs) {
  const auto bytes = std::make_shared<const std::string>(onnx_io::write_model(model));
  ModuleSession session(*bytes, bytes, parameters, one_thread(), {}, parameters);
  const Values seeds = {floats({}, {1})};
  count(name, [&] {
    Values outputs;
    auto pending = session.forward(inputs, outputs);
    session.backward(std::move(pending), seeds);
  });
}

/// Forward and backward as torch's autograd asks for them.
void module_step() {
  onnx_io::ModelProto model = perceptron();
  Values inputs = perceptron_batch();
  Names names;
  for (const Parameter& p : kPerceptron) {
    model.graph.input.push_back(make_info(p.name, p.dims));
    inputs.emplace_back(filled(p.dims));
    names.emplace_back(p.name);
  }
  step_of("module step of a perceptron", model, names, inputs);
}

/// The sum of many parameters, for what one more of them costs.
void module_of_parameters(const char* name, int parameters) {
  onnx_io::ModelProto model = onnx_io::make_model();
  Names names;
  Values inputs;
  for (int i = 0; i < parameters; ++i) {
    model.graph.input.push_back(make_info(names.emplace_back("p" + std::to_string(i)), {8}));
    inputs.emplace_back(filled({8}));
  }
  model.graph.node = {make_node("Concat", names, {"all"}, {make_int("axis", 0)}),
                      make_node("ReduceSum", {"all"}, {"sum"}, {make_int("keepdims", 0)})};
  model.graph.output = {make_info("sum", {})};
  step_of(name, model, names, inputs);
}

void optimizer_of(const char* name, std::size_t weights) {
  const Tensor values = filled({16});
  std::vector<Tensor> parameters;
  std::vector<Tensor> gradients;
  std::vector<std::vector<Tensor>> states(2);
  for (std::size_t i = 0; i < weights; ++i) {
    parameters.push_back(filled({16}));
    gradients.push_back(filled({16}));
    for (std::vector<Tensor>& state : states) state.push_back(filled({16}));
  }
  const OptimizerPass pass(Algorithm::adam, {WeightSettings()});
  OptimizerPass::Step step;
  step.rate = 1e-3;
  step.step = 1;
  const ThreadScope threads(1);
  count(name, [&] { pass.run(step, parameters, gradients, states); });
}

}  // namespace
}  // namespace backpass

int main() {
  backpass::native_step();
  backpass::module_step();
  backpass::module_of_parameters("module of 8 parameters", 8);
  backpass::module_of_parameters("module of 40 parameters", 40);
  backpass::optimizer_of("optimizer of 8 weights", 8);
  backpass::optimizer_of("optimizer of 40 weights", 40);
}
