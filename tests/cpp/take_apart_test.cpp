#include "training/take_apart.hpp"

#include <gtest/gtest.h>

#include "graph/same_values.hpp"
#include "graph_text.hpp"
#include "model/import.hpp"
#include "model/original_gradients.hpp"
#include "model/training_graph.hpp"
#include "training/step_source.hpp"
#include "training_testing.hpp"

namespace backpass {
namespace {

using Names = std::vector<std::string>;

bool is_parameter(const std::string& name) { return name == "w" || name == "b"; }

onnx_io::ModelProto training_model() {
  return build_training_models(regression_model(), {{"w", "b"}, {}, {"loss", "y"}}).training;
}

/// The gradient of w goes to its accumulator by way of a node of the user's.
onnx_io::ModelProto with_user_node(const std::string& op) {
  onnx_io::ModelProto model = training_model();
  for (onnx_io::NodeProto& node : model.graph.node) {
    if (node.op_type == "InPlaceAccumulatorV2" && node.input[1] == "w_grad") node.input[1] = "mine";
  }
  model.graph.node.push_back(make_node(op, {"w_grad"}, {"mine"}));
  return model;
}

TEST(TakeApart, DerivativesAreKnown) {
  const StepSource source(training_model(), is_parameter, true);
  ASSERT_NE(source.forward(), nullptr);
  EXPECT_EQ(source.forward()->outputs.size(), 2U);
  EXPECT_EQ(source.forward()->gradient_count, 0U);
  for (const Node* node : source.forward()->nodes()) EXPECT_EQ(node->name.find("_Grad/"), std::string::npos);
}

TEST(TakeApart, WhatElseThereIsStays) {
  const StepSource source(with_user_node("Neg"), is_parameter, true);
  EXPECT_EQ(source.forward(), nullptr);
  EXPECT_EQ(source.refusal().node, "[Neg 'mine']");
  // A copy is none the less the same.
  EXPECT_NE(StepSource(with_user_node("Identity"), is_parameter, true).forward(), nullptr);
}

onnx_io::NodeProto named(std::string name, onnx_io::NodeProto node) {
  node.name = std::move(name);
  return node;
}

/// loss = sum(x * w), as ONNX Runtime writes it.
onnx_io::GraphProto original_graph() {
  onnx_io::GraphProto graph;
  graph.initializer = {onnx_io::make_tensor<float>("loss_grad", DType::float32, {}, {1})};
  graph.output = {make_info("loss", {})};
  graph.node = {named("mul", make_node("Mul", {"x", "w"}, {"y"})),
                named("sum", make_node("ReduceSum", {"y"}, {"loss"})),
                named("sum_Grad/Shape_0", make_node("Shape", {"y"}, {"sum_Grad/shape"})),
                named("sum_Grad/Expand_1", make_node("Expand", {"loss_grad", "sum_Grad/shape"}, {"y_grad"})),
                named("mul_Grad/Mul_0", make_node("Mul", {"y_grad", "x"}, {"w_grad"})),
                named("GradientAccumulator1",
                      make_node("InPlaceAccumulatorV2", {"w_grad.accumulation.buffer", "w_grad", "lazy_reset_grad"},
                                {"w_grad.accumulation.out"}))};
  graph.node.back().domain = "com.microsoft";
  return graph;
}

TEST(OriginalGradients, AreKnownByNames) {
  EXPECT_EQ(find_stranger(original_graph()).what, "");
  onnx_io::GraphProto scaled = original_graph();
  scaled.initializer = {onnx_io::make_tensor<float>("loss_grad", DType::float32, {}, {2})};
  EXPECT_EQ(find_stranger(scaled).what, "'loss_grad', where gradients begin, is not 1");
}

TEST(OriginalGradients, NodesOfUsersAreStrangers) {
  onnx_io::GraphProto graph = original_graph();
  graph.node.insert(graph.node.begin() + 4, named("clip", make_node("Clip", {"y_grad"}, {"clipped"})));
  EXPECT_EQ(find_stranger(graph).node, "[Clip 'clip']");
  EXPECT_EQ(find_stranger(graph).what, "reads gradient 'y_grad'");
  graph = original_graph();
  graph.node[4].input[1] = "noise";
  EXPECT_EQ(find_stranger(graph).node, "[Mul 'mul_Grad/Mul_0']");
  graph = original_graph();
  graph.node[4].name = "other_Grad/Mul_0";
  EXPECT_EQ(find_stranger(graph).what, "is derived from no node of the model");
  graph = original_graph();
  graph.node[5].input[1] = "y_grad";
  EXPECT_EQ(find_stranger(graph).node, "[InPlaceAccumulatorV2 'GradientAccumulator1']");
}

TEST(TakeApart, AStoredModelHasTheSameLayout) {
  const onnx_io::ModelProto file = training_model();
  const StepSource source(file, is_parameter, true);
  PassManager none({}, {});
  const onnx_io::ModelProto stored = source.training_model(none);
  ASSERT_EQ(stored.graph.input.size(), file.graph.input.size());
  for (std::size_t i = 0; i < file.graph.input.size(); ++i) {
    EXPECT_EQ(stored.graph.input[i].name, file.graph.input[i].name);
  }
  ASSERT_EQ(stored.graph.output.size(), file.graph.output.size());
  for (std::size_t i = 0; i < file.graph.output.size(); ++i) {
    EXPECT_EQ(stored.graph.output[i].name, file.graph.output[i].name);
  }
  EXPECT_NE(StepSource(stored, is_parameter, true).forward(), nullptr);
}

bool are_alike(const std::string& one, const std::string& other) {
  return computes_alike(*parse_graph(one), *parse_graph(other));
}

TEST(SameValues, NamesDoNotCount) {
  const std::string graph = "graph 'g' (%x: float32[2])\n  %a = Relu(%x) 'r'\n  %y = Neg(%a) 'n'\n  return %y\n";
  const std::string renamed = "graph 'g' (%x: float32[2])\n  %b = Relu(%x) 's'\n  %z = Neg(%b) 'm'\n  return %z\n";
  const std::string copied =
      "graph 'g' (%x: float32[2])\n  %b = Relu(%x) 's'\n  %c = Identity(%b) 'c'\n  %z = Neg(%c) 'm'\n  return %z\n";
  const std::string other = "graph 'g' (%x: float32[2])\n  %a = Relu(%x) 'r'\n  %y = Abs(%a) 'n'\n  return %y\n";
  EXPECT_TRUE(are_alike(graph, renamed));
  EXPECT_TRUE(are_alike(graph, copied));
  EXPECT_FALSE(are_alike(graph, other));
}

TEST(SameValues, AttributesAndConstantsCount) {
  auto graph = [](const std::string& axis, const std::string& number) {
    return "graph 'g' (%x: float32[2,2])\n  %c = float32[1]{" + number + "}\n  %a = Softmax(%x) {axis=" + axis +
           "} 's'\n  %y = Mul(%a, %c) 'm'\n  return %y\n";
  };
  EXPECT_TRUE(are_alike(graph("1", "2"), graph("1", "2")));
  EXPECT_FALSE(are_alike(graph("1", "2"), graph("0", "2")));
  EXPECT_FALSE(are_alike(graph("1", "2"), graph("1", "3")));
}

}  // namespace
}  // namespace backpass
