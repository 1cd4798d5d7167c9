#include "training/step_model.hpp"

#include <gtest/gtest.h>

#include <map>

#include "expect_error.hpp"
#include "model/training_graph.hpp"
#include "training_testing.hpp"

namespace backpass {
namespace {

using Names = std::vector<std::string>;
using Gradients = StepModel::Gradients;

bool is_parameter(const std::string& name) { return name == "w" || name == "b"; }

TrainingModels regression_models(Names requires_grad = {"w", "b"}, const Names& frozen = {}) {
  return build_training_models(regression_model(), {std::move(requires_grad), frozen, {"loss", "y"}});
}

/// One step model with its parameters and gradient buffers.
struct Step {
  Regression numbers;
  StepModel model;
  std::vector<Tensor> parameters = {numbers.w, numbers.b};
  std::vector<Tensor> gradients = {floats({2, 1}, {100, 100}), floats({1}, {100})};
  RandomSource random;

  explicit Step(const SessionOptions& options = {}) : model(regression_models().training, is_parameter, options) {}

  std::vector<RuntimeValue> run(Gradients mode) {
    return model.run(std::vector<RuntimeValue>{numbers.x, numbers.t}, parameters, mode, gradients, {}, random);
  }
};

Names names_of(const std::vector<ValueInfo>& infos) {
  Names names;
  for (const ValueInfo& info : infos) names.push_back(info.name);
  return names;
}

TEST(StepModel, KnowsWhoseIsWhat) {
  const Step step;
  EXPECT_EQ(names_of(step.model.inputs()), (Names{"x", "t"}));
  EXPECT_EQ(names_of(step.model.outputs()), (Names{"loss", "y"}));
  EXPECT_EQ(step.model.parameters(), (Names{"w", "b"}));
  EXPECT_EQ(step.model.trainable(), (Names{"w", "b"}));
  EXPECT_EQ(step.model.updated(), Names{});
  EXPECT_EQ(step.model.parameter_infos()[0].dims, (Dims{2, 1}));
  EXPECT_EQ(step.model.parameter_infos()[1].dtype, DType::float32);
}

TEST(StepModel, GradientsReplaceOrAreAdded) {
  for (bool optimized : {true, false}) {
    Step step({.optimize = optimized});
    const std::vector<RuntimeValue> outputs = step.run(Gradients::replace);
    EXPECT_EQ(numbers_in(outputs[0].tensor), Floats{6.25F});
    EXPECT_EQ(numbers_in(outputs[1].tensor), (Floats{-0.5F, 4.5F}));
    EXPECT_EQ(numbers_in(step.gradients[0]), (Floats{10, -4.5F}));
    EXPECT_EQ(numbers_in(step.gradients[1]), Floats{3});
    step.run(Gradients::add);
    step.run(Gradients::add);
    EXPECT_EQ(numbers_in(step.gradients[0]), (Floats{30, -13.5F}));
    EXPECT_EQ(numbers_in(step.gradients[1]), Floats{9});
    step.run(Gradients::replace);
    EXPECT_EQ(numbers_in(step.gradients[0]), (Floats{10, -4.5F}));
    EXPECT_TRUE(step.model.has_whole_gradients());
  }
}

TEST(StepModel, ParametersAreUpdatedInPlace) {
  for (bool optimized : {true, false}) {
    Step step({.optimize = optimized});
    step.model.set_update(UpdateRule{"SGDUpdate", {}, {}});
    EXPECT_EQ(step.model.update_obstacle(), "");
    const UpdateArguments update{.rate = 0.5, .step = 1, .parameters = step.parameters, .states = {}};
    const std::vector<RuntimeValue> inputs = {step.numbers.x, step.numbers.t};
    const auto outputs = step.model.run_and_update(inputs, step.parameters, update, {}, step.random);
    EXPECT_EQ(numbers_in(outputs[0].tensor), Floats{6.25F});
    EXPECT_EQ(numbers_in(outputs[1].tensor), (Floats{-0.5F, 4.5F}));
    EXPECT_EQ(numbers_in(step.parameters[0]), (Floats{-4, 1.25F}));
    EXPECT_EQ(numbers_in(step.parameters[1]), Floats{-1});
    EXPECT_FALSE(step.model.has_half_updated());
    step.parameters[0] = floats({2, 1}, {1, -1});
    step.parameters[1] = floats({1}, {0.5F});
    step.run(Gradients::replace);
    step.run(Gradients::add);
    EXPECT_EQ(numbers_in(step.gradients[0]), (Floats{20, -9}));
    step.model.run_and_update(inputs, step.parameters, update, {}, step.random);
    EXPECT_EQ(numbers_in(step.parameters[0]), (Floats{-4, 1.25F}));
  }
}

TEST(StepModel, TheEvalModelHasTheSameLossAndNoGradients) {
  const Regression numbers;
  StepModel model(regression_models().eval, is_parameter, {});
  EXPECT_TRUE(model.trainable().empty());
  RandomSource random;
  const auto outputs = model.run(std::vector<RuntimeValue>{numbers.x, numbers.t},
                                 std::vector<Tensor>{numbers.w, numbers.b}, Gradients::replace, {}, {}, random);
  EXPECT_EQ(numbers_in(outputs[0].tensor), Floats{6.25F});
}

TEST(StepModel, FrozenParametersHaveNoGradient) {
  const Regression numbers;
  StepModel model(regression_models({"b"}, {"w"}).training, is_parameter, {});
  EXPECT_EQ(model.trainable(), Names{"b"});
  std::vector<Tensor> parameters;
  for (const std::string& name : model.parameters()) parameters.push_back(name == "w" ? numbers.w : numbers.b);
  const std::vector<Tensor> gradients = {floats({1}, {0})};
  RandomSource random;
  model.run(std::vector<RuntimeValue>{numbers.x, numbers.t}, parameters, Gradients::replace, gradients, {}, random);
  EXPECT_EQ(numbers_in(gradients[0]), Floats{3});
}

/// y = batch_norm(x), loss its sum; by `op`, which has `outputs`.
onnx_io::ModelProto normalisation(const std::string& op, const std::string& domain, Names outputs) {
  onnx_io::ModelProto model = onnx_io::make_model();
  model.opset_import.push_back({"com.microsoft", 1});
  model.graph.input = {make_info("x", {-1, 1})};
  onnx_io::AttributeProto momentum = onnx_io::make_attribute("momentum", onnx_io::AttributeProto::Type::float_);
  momentum.f = 0.5F;
  model.graph.node = {make_node(op, {"x", "scale", "shift", "mean", "variance"}, std::move(outputs),
                                {momentum, make_int("training_mode", 1)}),
                      make_node("ReduceSum", {"y"}, {"loss"}, {make_int("keepdims", 0)})};
  model.graph.node[0].domain = domain;
  model.graph.output = {make_info("loss", {})};
  return model;
}

/// Running mean 4 and variance 8, momentum 1/2, and rows 0 and 4, of mean 2 and variance 4.
void expect_new_statistics(const onnx_io::ModelProto& training) {
  StepModel model(training, [](const std::string& name) { return name != "x"; }, {});
  ASSERT_EQ(model.updated(), (Names{"mean", "variance"}));
  const std::map<std::string, float> start = {{"scale", 1}, {"shift", 0}, {"mean", 4}, {"variance", 8}};
  std::vector<Tensor> parameters;
  for (const std::string& name : model.parameters()) parameters.push_back(floats({1}, {start.at(name)}));
  std::vector<Tensor> gradients;
  for (std::size_t i = 0; i < model.trainable().size(); ++i) gradients.push_back(floats({1}, {0}));
  const std::vector<Tensor> updates = {floats({1}, {0}), floats({1}, {0})};
  RandomSource random;
  model.run(std::vector<RuntimeValue>{floats({2, 1}, {0, 4})}, parameters, Gradients::replace, gradients, updates,
            random);
  EXPECT_EQ(numbers_in(updates[0]), Floats{3});
  EXPECT_EQ(numbers_in(updates[1]), Floats{6});
}

TEST(StepModel, StatisticsOfBatchNormalisationAreWrittenBack) {
  onnx_io::ModelProto source = normalisation("BatchNormalization", "", {"y", "new_mean", "new_variance"});
  for (const char* name : {"scale", "shift", "mean", "variance"}) {
    source.graph.initializer.push_back(onnx_io::make_tensor<float>(name, DType::float32, {1}, {1}));
  }
  EXPECT_EQ(running_statistics(source), (Names{"mean", "variance"}));
  expect_new_statistics(build_training_models(source, {{"scale"}, {"shift", "mean", "variance"}, {"loss"}}).training);
}

TEST(StepModel, StatisticsThatOnnxRuntimeWritesOverAreWrittenBack) {
  onnx_io::ModelProto model =
      normalisation("BatchNormInternal", "com.microsoft", {"y", "", "", "saved_mean", "saved_inverse"});
  for (const char* name : {"scale", "shift", "mean", "variance"}) model.graph.input.push_back(make_info(name, {1}));
  expect_new_statistics(model);
}

TEST(StepModel, WrongInputsAreRefusedBeforeAnythingIsWritten) {
  Step step;
  auto run = [&](std::vector<RuntimeValue> inputs) {
    step.model.run(inputs, step.parameters, Gradients::replace, step.gradients, {}, step.random);
  };
  expect_error<InvalidInput>([&] { run({step.numbers.x}); }, {"number of inputs: got 1, expected 2"});
  expect_error<InvalidInput>(
      [&] {
        run({floats({2, 3}, Floats(6)), Tensor::scalar_int(1)});
      },
      {"'x': got float32[2,3], expected float32[n,2]", "'t': got int64[], expected float32[n,1]"});
  expect_error<InvalidInput>(
      [&] {
        run({step.numbers.x, floats({3, 1}, Floats(3))});
      },
      {"input 't' axis 0: got 3, but 'n' is 2 in another input; they must be equal"});
  EXPECT_EQ(numbers_in(step.gradients[1]), Floats{100});
  EXPECT_TRUE(step.model.has_whole_gradients());
}

TEST(StepModel, ParametersNeedExtents) {
  onnx_io::ModelProto model = regression_models().training;
  for (auto& input : model.graph.input) {
    if (input.name == "b") input.type.shape = {{{}, "k", ""}};
  }
  expect_error<InvalidInput>([&] { StepModel(model, is_parameter, {}); },
                             {"parameter 'b': got float32[k] in the model, expected a tensor of known shape"});
}

TEST(StepModel, AccumulationIntoAnythingElseIsRefused) {
  onnx_io::ModelProto model = regression_models().training;
  for (auto& input : model.graph.input) {
    if (input.name == "w_grad.accumulation.buffer") input.name = "elsewhere";
  }
  for (auto& node : model.graph.node) {
    for (std::string& name : node.input) {
      if (name == "w_grad.accumulation.buffer") name = "elsewhere";
    }
  }
  expect_error<Unsupported>([&] { StepModel(model, is_parameter, {}); },
                            {"accumulates into 'elsewhere': expected a gradient buffer or a parameter"});
}

TEST(StepModel, TheNumberOfThreadsDoesNotMatter) {
  auto gradient = [](int threads) {
    Step step({.num_threads = threads});
    step.numbers.x = Tensor(DType::float32, {4096, 2});
    step.numbers.t = Tensor(DType::float32, {4096, 1});
    for (std::int64_t i = 0; i < step.numbers.x.size(); ++i)
      step.numbers.x.as<float>()[i] = 1.0F / static_cast<float>(i + 3);
    for (std::int64_t i = 0; i < step.numbers.t.size(); ++i)
      step.numbers.t.as<float>()[i] = 1.0F / static_cast<float>(i + 7);
    step.run(Gradients::replace);
    step.run(Gradients::add);
    return numbers_in(step.gradients[0]);
  };
  EXPECT_EQ(gradient(1), gradient(3));
}

}  // namespace
}  // namespace backpass
