#include "training/module_graph.hpp"

#include "expect_error.hpp"
#include "gradient_testing.hpp"
#include "ops/custom/yield.hpp"
#include "training/read_later.hpp"

namespace backpass {
namespace {

using Names = std::vector<std::string>;
using Numbers = std::vector<std::size_t>;

/// A module's graph being written; add_module_gradients takes it away.
struct Module {
  std::unique_ptr<Graph> graph = std::make_unique<Graph>();
  Builder b{*graph, nullptr, "m"};

  Value* input(std::string_view name, DType dtype = DType::float64) {
    graph->inputs.push_back(graph->add_value(name, Type::tensor(dtype, Shape{Dim::symbol("n"), 3})));
    return graph->inputs.back();
  }

  ModuleGraph differentiated(const Names& requires_grad, const std::vector<bool>& seeded) {
    ModuleGraph module = add_module_gradients(std::move(graph), requires_grad, seeded);
    EXPECT_TRUE(verify(*module.graph).empty()) << verify(*module.graph).front();
    return module;
  }
};

const Node* yield_of(const ModuleGraph& module) {
  for (const Node* node : module.graph->nodes()) {
    if (is_yield(*node)) return node;
  }
  return nullptr;
}

ReadLater read_later(const ModuleGraph& module) {
  return find_read_later(*make_program(*module.graph), module.user_outputs);
}

TEST(ModuleGraph, OutputsDependOnWhatIsAskedFor) {
  Module m;
  Value* x = m.input("x");
  Value* w = m.input("w");
  m.graph->outputs = {m.b.op("Exp", {x}), m.b.op("Mul", {x, w}), m.b.op("Floor", {w}), m.b.op("ArgMax", {w}), w};
  EXPECT_EQ(differentiable_outputs(*m.graph, Names{"w"}), (std::vector<bool>{false, true, false, false, true}));
  EXPECT_EQ(differentiable_outputs(*m.graph, Names{}), std::vector<bool>(5, false));
}

TEST(ModuleGraph, WhatCannotBeAskedFor) {
  Module m;
  m.graph->outputs = {m.b.op("Exp", {m.input("x")})};
  m.input("labels", DType::int64);
  expect_error<InvalidInput>([&] { differentiable_outputs(*m.graph, Names{"y"}); },
                             {"requires_grad 'y': got a name that is no input of the module's graph"});
  expect_error<InvalidInput>([&] { add_module_gradients(std::move(m.graph), Names{"labels"}, {true}); },
                             {"requires_grad 'labels': got int64[n,3], expected a tensor of floats"});
}

TEST(ModuleGraph, GradientsFollowTheOutputs) {
  Module m;
  Value* x = m.input("x");
  Value* w = m.input("w");
  m.input("unused");
  Value* aside = m.b.op("Neg", {w});
  Value* y = m.b.op("Mul", {x, w});
  m.graph->outputs = {aside, y};
  const ModuleGraph module = m.differentiated({"w", "unused", "x"}, {false, true});
  EXPECT_EQ(module.user_outputs, 2U);
  EXPECT_EQ(module.seeds, Numbers{1});
  EXPECT_EQ(module.gradients, (std::vector<int>{0, -1, 1}));
  ASSERT_EQ(module.graph->outputs.size(), 4U);
  EXPECT_EQ(module.graph->outputs[2]->name, "w_grad");
  EXPECT_EQ(module.graph->outputs[3]->name, "x_grad");
  const Node* yield = yield_of(module);
  ASSERT_NE(yield, nullptr);
  const std::vector<Value*>& reads = yield->inputs;
  EXPECT_EQ(reads, (std::vector<Value*>{aside, y}));
  ASSERT_EQ(yield->outputs.size(), 1U);
  EXPECT_EQ(yield->outputs[0]->type.str(), y->type.str());
  EXPECT_EQ(yield->attr_ints(kYieldSeeds), std::vector<std::int64_t>{1});
}

TEST(ModuleGraph, WithoutSeedsTheForwardHalfRemains) {
  Module m;
  Value* x = m.input("x");
  m.graph->outputs = {m.b.op("Exp", {x})};
  const ModuleGraph module = m.differentiated({"x"}, {false});
  EXPECT_EQ(yield_of(module), nullptr);
  EXPECT_EQ(module.gradients, std::vector<int>{-1});
  EXPECT_EQ(module.graph->nodes().size(), 1U);
}

TEST(ModuleGraph, StopsHaveNoMeaningOnceGradientsAreThere) {
  Module m;
  Value* x = m.input("x");
  Value* stopped = m.b.op("StopGradient", {m.b.op("Exp", {x})}, {}, "backpass");
  m.graph->outputs = {m.b.op("Mul", {x, stopped})};
  const ModuleGraph module = m.differentiated({"x"}, {true});
  for (const Node* node : module.graph->nodes()) EXPECT_NE(node->op, "StopGradient");
  const Value* gradient = module.graph->outputs[1];
  EXPECT_EQ(gradient->producer->op, "Mul") << print(*module.graph);  // d/dx = stopped, nothing through Exp
}

TEST(ReadLater, FactorsAreReadWhereTheyAre) {
  Module m;
  m.graph->outputs = {m.b.op("Mul", {m.input("x"), m.input("w")})};
  const ReadLater later = read_later(m.differentiated({"x", "w"}, {true}));
  EXPECT_EQ(later.inputs, (Numbers{0, 1}));
  EXPECT_EQ(later.outputs, Numbers{});
}

TEST(ReadLater, AResultIsReadWhereItIs) {
  Module m;
  m.graph->outputs = {m.b.op("Tanh", {m.input("x")})};
  const ReadLater later = read_later(m.differentiated({"x"}, {true}));
  EXPECT_EQ(later.inputs, Numbers{});
  EXPECT_EQ(later.outputs, Numbers{0});
  EXPECT_EQ(later.kept, Numbers{});
  EXPECT_EQ(later.gradients, Numbers{});
}

TEST(ReadLater, ViewsLookAtTheMemoryOfOthers) {
  Module m;
  Value* flat = m.b.op("Reshape", {m.input("x"), m.b.ints({-1})});
  Value* y = m.b.op("Mul", {flat, m.b.op("Exp", {flat})});
  m.graph->outputs = {m.b.op("Unsqueeze", {y, m.b.ints({0})}),
                      m.b.op("Reshape", {m.b.op("Tanh", {y}), m.b.ints({-1})})};
  const ReadLater later = read_later(m.differentiated({"x"}, {true, true}));
  EXPECT_EQ(later.inputs, Numbers{0});
  EXPECT_EQ(later.outputs, Numbers{1});
}

TEST(ReadLater, AnOutputIsReadThroughAView) {
  Module m;
  Value* y = m.b.op("Neg", {m.input("x")});
  Value* flat = m.b.op("Reshape", {y, m.b.ints({-1})});
  m.graph->outputs = {y, m.b.op("Mul", {flat, flat})};
  const ReadLater later = read_later(m.differentiated({"x"}, {false, true}));
  EXPECT_EQ(later.inputs, Numbers{});
  EXPECT_EQ(later.outputs, Numbers{0});
}

TEST(ReadLater, ExtentsAreNoContents) {
  Module m;
  m.graph->outputs = {m.b.op("ReduceSum", {m.input("x")}, {{"keepdims", std::int64_t{0}}})};
  const ReadLater later = read_later(m.differentiated({"x"}, {true}));
  EXPECT_EQ(later.inputs, Numbers{});
}

}  // namespace
}  // namespace backpass
