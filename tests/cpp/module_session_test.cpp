#include "training/module_session.hpp"

#include <gtest/gtest.h>

#include "expect_error.hpp"
#include "onnx_io/writer.hpp"
#include "training_testing.hpp"

namespace backpass {
namespace {

using Names = std::vector<std::string>;
using Values = std::vector<RuntimeValue>;
using Indices = std::vector<std::size_t>;

ModuleSession session_of(const onnx_io::ModelProto& model, Names requires_grad, const SessionOptions& options) {
  const auto bytes = std::make_shared<const std::string>(onnx_io::write_model(model));
  return {*bytes, bytes, std::move(requires_grad), options};
}

/// x, t, w and b are inputs; outputs: loss and y.
ModuleSession regression_session(Names requires_grad = {"w", "b", "x"}, const SessionOptions& options = {}) {
  onnx_io::ModelProto model = regression_model();
  model.graph.initializer.clear();
  model.graph.input.push_back(make_info("w", {2, 1}));
  model.graph.input.push_back(make_info("b", {1}));
  model.graph.output.push_back(make_info("y", {-1, 1}));
  return session_of(model, std::move(requires_grad), options);
}

Values feeds() {
  const Regression n;
  return {n.x, n.t, n.w, n.b};
}

const Tensor kOne = floats({}, {1});

TEST(ModuleSession, ForwardAlone) {
  ModuleSession session = regression_session();
  const Values outputs = session.forward(feeds());
  EXPECT_EQ(numbers_in(outputs[0].tensor), Floats{6.25F});
  EXPECT_EQ(numbers_in(outputs[1].tensor), (Floats{-0.5F, 4.5F}));
  EXPECT_EQ(session.differentiable_outputs(), (std::vector<bool>{true, true}));
  EXPECT_FALSE(session.is_random());
}

TEST(ModuleSession, BackwardByHand) {
  for (bool optimized : {true, false}) {
    ModuleSession session = regression_session({"w", "b", "x"}, {.optimize = optimized});
    Values outputs;
    auto pending = session.forward(feeds(), outputs);
    EXPECT_EQ(numbers_in(outputs[0].tensor), Floats{6.25F});
    EXPECT_FALSE(session.repeats(*pending, {true, false}));  // gradients of a scalar are what is expected
    const Values gradients = session.backward(pending, Values{kOne, {}});
    EXPECT_EQ(numbers_in(gradients[0].tensor), (Floats{10, -4.5F}));
    EXPECT_EQ(numbers_in(gradients[1].tensor), Floats{3});
    EXPECT_EQ(numbers_in(gradients[2].tensor), (Floats{-0.5F, 0.5F, 3.5F, -3.5F}));
  }
}

TEST(ModuleSession, SeedsForOtherOutputsRepeatThePass) {
  ModuleSession session = regression_session();
  const Tensor seed = floats({2, 1}, {1, 10});
  Values outputs;
  auto pending = session.forward(feeds(), outputs);
  EXPECT_TRUE(session.repeats(*pending, {false, true}));
  Values gradients = session.backward(pending, Values{{}, seed});
  EXPECT_EQ(numbers_in(gradients[0].tensor), (Floats{31, -8}));
  EXPECT_EQ(numbers_in(gradients[1].tensor), Floats{11});
  pending = session.forward(feeds(), outputs);
  EXPECT_FALSE(session.repeats(*pending, {false, true}));  // expected from then on
  gradients = session.backward(pending, Values{kOne, seed});
  EXPECT_EQ(numbers_in(gradients[0].tensor), (Floats{41, -12.5F}));
}

TEST(ModuleSession, BackwardASecondTime) {
  ModuleSession session = regression_session();
  Values outputs;
  const auto pending = session.forward(feeds(), outputs);
  const Values first = session.backward(pending, Values{kOne, {}});
  const Values second = session.backward(pending, Values{floats({}, {2}), {}});
  EXPECT_EQ(numbers_in(first[1].tensor), Floats{3});
  EXPECT_EQ(numbers_in(second[1].tensor), Floats{6});
}

TEST(ModuleSession, SeveralPassesAtOnce) {
  ModuleSession session = regression_session({"b"});
  Values outputs;
  const auto first = session.forward(feeds(), outputs);
  Values others = feeds();
  others[3] = floats({1}, {1.5F});
  const auto second = session.forward(others, outputs);
  EXPECT_EQ(numbers_in(session.backward(second, Values{kOne, {}})[0].tensor), Floats{5});
  EXPECT_EQ(numbers_in(session.backward(first, Values{kOne, {}})[0].tensor), Floats{3});
}

TEST(ModuleSession, NothingFlowsBackWhereNothingDepends) {
  ModuleSession session = regression_session({"t", "w"});
  Values outputs;
  const auto pending = session.forward(feeds(), outputs);
  EXPECT_TRUE(session.backward(pending, Values{kOne, {}})[0].is_tensor());
  const Values gradients = session.backward(pending, Values{{}, floats({2, 1}, {1, 1})});
  EXPECT_FALSE(gradients[0].is_tensor());  // y does not depend on t
  EXPECT_TRUE(gradients[1].is_tensor());
}

TEST(ModuleSession, WhatMustStayAsItIs) {
  const Indices weights_and_rows = {0, 2};  // x for the gradient of w, w for that of x
  EXPECT_EQ(regression_session({"w", "x"}).read_by_backward().first, weights_and_rows);
  EXPECT_EQ(regression_session({"w"}).read_by_backward().first, Indices{0});
  EXPECT_EQ(regression_session({"b"}).read_by_backward().first, Indices{});
}

TEST(ModuleSession, MistakesAreNamed) {
  expect_error<InvalidInput>([] { regression_session({"loss"}); },
                             {"requires_grad 'loss': got a name that is no input of the module's graph"});
  ModuleSession session = regression_session();
  Values outputs;
  expect_error<InvalidInput>([&] { session.forward(Values{kOne}, outputs); }, {"number of inputs: got 1, expected 4"});
  Values wrong = feeds();
  wrong[2] = floats({3, 1}, Floats(3));
  expect_error<InvalidInput>([&] { session.forward(wrong, outputs); },
                             {"'w': got float32[3,1], expected float32[2,1]"});
  const auto pending = session.forward(feeds(), outputs);
  expect_error<InvalidInput>([&] { session.backward(pending, Values{kOne}); },
                             {"gradients of outputs: got 1, expected one per output, 2"});
  expect_error<InvalidInput>(
      [&] {
        session.backward(pending, Values{floats({1}, {1}), {}});
      },
      {"gradient of output 'loss': got float32[1], expected float32[] as the output has"});
}

/// y = dropout(x), half of it.
ModuleSession dropout_session() {
  onnx_io::ModelProto model = onnx_io::make_model();
  model.graph.input = {make_info("x", {-1})};
  model.graph.initializer = {onnx_io::make_tensor<float>("ratio", DType::float32, {}, {0.5F}),
                             onnx_io::make_tensor<std::uint8_t>("training", DType::boolean, {}, {1})};
  model.graph.node = {make_node("Dropout", {"x", "ratio", "training"}, {"y"})};
  model.graph.output = {make_info("y", {-1})};
  return session_of(model, {"x"}, {});
}

TEST(ModuleSession, BackwardDropsWhatForwardDropped) {
  ModuleSession session = dropout_session();
  EXPECT_TRUE(session.is_random());
  const Tensor ones = floats({64}, Floats(64, 1));
  Values outputs;
  const auto pending = session.forward(Values{ones}, outputs, 5);
  const Floats kept = numbers_in(outputs[0].tensor);
  EXPECT_NE(kept, Floats(64, 0));
  EXPECT_NE(kept, Floats(64, 2));
  for (int time = 0; time < 2; ++time) {  // the second time the pass is repeated, with the same numbers
    EXPECT_EQ(numbers_in(session.backward(pending, Values{ones})[0].tensor), kept);
  }
  EXPECT_EQ(numbers_in(session.forward(Values{ones}, 5)[0].tensor), kept);
  EXPECT_NE(numbers_in(session.forward(Values{ones}, 6)[0].tensor), kept);
}

}  // namespace
}  // namespace backpass
