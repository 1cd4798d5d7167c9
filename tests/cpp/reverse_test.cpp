#include "gradient/reverse.hpp"

#include "expect_error.hpp"
#include "gradient_testing.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

const Node& producer(const Value* v) { return *v->producer; }

bool uses_domain(const Graph& graph, std::string_view domain) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(), [&](const Node* n) { return n->domain == domain; });
}

OpDef foreign(std::string_view name, void (*gradient)(GradientContext&)) {
  OpDef def;
  def.name = name;
  def.gradient = gradient;
  return def;
}

/// A node of an operator that is not registered.
Value* add_foreign(GradientFixture& f, const OpDef& def, Value* x, const std::string& name) {
  Value* y = f.graph.add_value(name, x->type);
  f.graph.add_node(def.name, {x}, {y}, name)->def = &def;
  return y;
}

TEST(Reverse, ChainsBroadcastsAndFansAreRight) {
  GradientFixture f;
  Value* x = f.input({3, 4});
  Value* w = f.input({4, 2});
  Value* bias = f.input({2});
  Value* z = f.b.op("Add", {f.b.op("MatMul", {x, w}), bias});
  f.output(f.b.op("Mul", {f.b.op("Tanh", {z}), f.b.op("Sigmoid", {z})}));
  f.output(f.b.op("Sin", {x}));
  f.expect_right_gradients({x, w, bias});
}

TEST(Reverse, SymbolicExtentsAreRight) {
  GradientFixture f;
  Value* x = f.input({3, 4}, {"batch", "width"});
  Value* scale = f.input({4}, {"width"});
  f.output(f.b.op("Softmax", {f.b.op("Mul", {x, scale})}));
  f.expect_right_gradients({x, scale});
}

TEST(Reverse, ANullSeedStandsForOnes) {
  GradientFixture f;
  Value* x = f.input({3});
  f.output(f.b.op("Mul", {x, x}));
  const std::vector<Value*> outputs = f.graph.outputs;
  f.graph.outputs = add_gradients(f.graph, outputs, {}, std::vector<Value*>{x});
  const std::vector<double> at = f.fed(x).to_doubles();
  const std::vector<double> got = f.run().at(0).to_doubles();
  for (std::size_t i = 0; i < at.size(); ++i) EXPECT_DOUBLE_EQ(got[i], 2 * at[i]);
}

TEST(Reverse, NamesAreThoseOfOnnxRuntime) {
  GradientFixture f;
  Value* x = f.input({3});
  Value* y = f.b.op("Add", {f.b.op("Sin", {x}), f.b.op("Cos", {x})});
  f.graph.rename(y, "loss");
  producer(y).inputs[0]->producer->name = "sine";
  f.output(y);
  const Value* gradient = f.differentiate({x}).at(0);
  EXPECT_EQ(gradient->name, "x_grad");
  EXPECT_EQ(producer(gradient).name, "AccumulateGrad_x_grad");
  EXPECT_EQ(producer(gradient).input(0)->name, "x_grad_0");
  EXPECT_EQ(producer(gradient).input(1)->name, "x_grad_1");
  EXPECT_NE(print(f.graph).find("'sine_Grad/"), std::string::npos) << print(f.graph);
}

TEST(Reverse, GradientsThatPassThroughHaveTheirOwnNames) {
  GradientFixture f;
  Value* a = f.input({3});
  Value* c = f.input({3});
  f.graph.rename(a, "a");
  f.graph.rename(c, "c");
  f.output(f.b.op("Add", {a, c}));
  const std::vector<Value*> gradients = f.differentiate({a, c});
  EXPECT_NE(gradients[0], gradients[1]);
  EXPECT_EQ(gradients[0]->name, "a_grad");
  EXPECT_EQ(gradients[1]->name, "c_grad");
}

TEST(Reverse, WithRespectToAnOutputTheSeedIsTheAnswer) {
  GradientFixture f;
  Value* x = f.input({3});
  Value* y = f.b.op("Exp", {x});
  f.output(y);
  Value* seed = f.input({3});
  const std::vector<Value*> outputs = f.graph.outputs;
  f.graph.outputs = add_gradients(f.graph, outputs, std::vector<Value*>{seed}, std::vector<Value*>{y});
  EXPECT_EQ(f.run().at(0).to_doubles(), f.fed(seed).to_doubles());
}

TEST(Reverse, WhatOutputsDoNotDependOnHasZeros) {
  GradientFixture f;
  Value* x = f.input({3});
  Value* other = f.input({2, 2}, {"n"});
  f.output(f.b.op("Exp", {x}));
  f.graph.outputs = f.differentiate({other});
  EXPECT_EQ(f.graph.outputs[0]->name, other->name + "_grad");
  const Tensor zeros = f.run().at(0);
  EXPECT_EQ(zeros.dims(), (Dims{2, 2}));
  EXPECT_EQ(zeros.to_doubles(), std::vector<double>(4, 0.0));
}

TEST(Reverse, FlatOperatorsAndIntegersStopTheFlow) {
  GradientFixture f;
  Value* x = f.input({3});
  Value* whole = f.b.op("Cast", {x}, {{"to", static_cast<std::int64_t>(DType::int64)}});
  Value* back = f.b.op("Cast", {whole}, {{"to", static_cast<std::int64_t>(DType::float64)}});
  f.output(f.b.op("Sum", {f.b.op("Floor", {x}), back, f.b.op("Mul", {x, x})}));
  f.fed(x) = Tensor::from<double>(DType::float64, {3}, std::vector<double>{0.25, -1.5, 2.5});
  f.expect_right_gradients({x});
}

TEST(Reverse, OnlySomeOutputsOfANodeHaveGradients) {
  GradientFixture f;
  Value* x = f.input({4});
  f.output(f.b.op("Exp", {f.b.ops("Split", {x}, 2, {{"num_outputs", std::int64_t{2}}})[1]}));
  f.expect_right_gradients({x});
}

TEST(Reverse, GradientsCanBeDifferentiated) {
  GradientFixture f;
  Value* x = f.input({3});
  f.output(f.b.op("Mul", {x, f.b.op("Mul", {x, x})}));
  const std::vector<Value*> outputs = f.graph.outputs;
  f.graph.outputs = add_gradients(f.graph, outputs, {}, std::vector<Value*>{x}, {.standard_only = true});
  f.expect_right_gradients({x});
  const std::vector<double> at = f.fed(x).to_doubles();
  const std::vector<Tensor> results = f.run();
  for (std::size_t i = 0; i < at.size(); ++i) EXPECT_NEAR(results[0].to_doubles()[i], 3 * at[i] * at[i], 1e-12);
}

TEST(Reverse, FusedRulesAreForThoseWhoDidNotAskForTheStandard) {
  for (bool standard_only : {false, true}) {
    GradientFixture f;
    Value* x = f.input({2, 5});
    f.output(f.b.op("Softmax", {x}));
    f.expect_right_gradients({x}, {.standard_only = standard_only});
    EXPECT_EQ(uses_domain(f.graph, "com.microsoft"), !standard_only);
  }
}

TEST(Reverse, TheSameGraphGivesTheSameText) {
  auto text = [](GradientFixture& f) {
    Value* x = f.input({2, 3}, {"n"});
    Value* w = f.input({3, 3});
    Value* y = f.b.op("MatMul", {x, w});
    for (const char* op : {"Tanh", "Sin", "Exp"}) f.output(f.b.op(op, {y}));
    f.differentiate({w, x});
    return print(f.graph);
  };
  GradientFixture first;
  GradientFixture second;  // alive together, so at other addresses
  EXPECT_EQ(text(first), text(second));
}

TEST(Reverse, AllProblemsAreToldAtOnce) {
  const OpDef opaque = foreign("Opaque", nullptr);
  GradientFixture f;
  Value* x = f.input({3});
  Value* y = add_foreign(f, opaque, x, "first");
  y = add_foreign(f, opaque, y, "second");
  add_foreign(f, opaque, x, "aside");
  f.output(y);
  const std::vector<Problem> problems = gradient_problems(f.graph, f.graph.outputs, std::vector<Value*>{x});
  ASSERT_EQ(problems.size(), 2U);
  EXPECT_EQ(problems[0].node, "first");
  EXPECT_EQ(problems[1].node, "second");
  EXPECT_EQ(problems[0].kind, Problem::Kind::unsupported);
  expect_error<Unsupported>([&] { add_gradients(f.graph, std::vector<Value*>{y}, {}, std::vector<Value*>{x}); },
                            {"[Opaque 'first'] gradient: got an operator without one on the way to 'first'",
                             "[Opaque 'second'] gradient: got an operator without one on the way to 'second'"});
  EXPECT_EQ(f.graph.nodes().size(), 3U);  // nothing was added
}

TEST(Reverse, IntegersHaveNoGradient) {
  GradientFixture f;
  Value* x = f.input({3});
  Value* count = f.b.op("NonZero", {x});
  f.graph.rename(count, "count");
  Value* index = f.graph.add_value("index", Type::tensor(DType::int64, Shape{2}));
  f.graph.inputs.push_back(index);
  expect_error<InvalidInput>(
      [&] { add_gradients(f.graph, std::vector<Value*>{count}, {}, std::vector<Value*>{index}); },
      {"differentiated output 'count': got int64[", "expected floats",
       "differentiation with respect to 'index': got int64[2], expected floats"});
}

void says_nothing(GradientContext&) {}
void says_it_twice(GradientContext& g) {
  g.set(0, g.dy());
  g.set(0, g.dy());
}
void says_float32(GradientContext& g) { g.set(0, g.cast(g.dy(), DType::float32)); }
void says_another_shape(GradientContext& g) { g.set(0, g.reshape(g.dy(), {1, 3})); }
void reads_what_is_not_there(GradientContext& g) { g.set(0, g.x(1)); }

TEST(Reverse, RulesThatBreakTheirPromiseAreNamed) {
  using Rule = void (*)(GradientContext&);
  const std::vector<std::pair<Rule, std::string_view>> table = {
      {says_nothing, "[Odd 'node'] gradient rule says nothing of input 0"},
      {says_it_twice, "[Odd 'node'] gradient of input 0 set twice or for nothing"},
      {says_float32, "[Odd 'node'] gradient of 'x': got float32[3], expected float64[3]"},
      {says_another_shape, "[Odd 'node'] gradient of 'x': got float64[1,3], expected float64[3]"},
      {reads_what_is_not_there, "[Odd 'node'] gradient reads input 1, which is omitted"},
  };
  for (const auto& [rule, message] : table) {
    const OpDef odd = foreign("Odd", rule);
    GradientFixture f;
    Value* x = f.input({3});
    Value* y = add_foreign(f, odd, x, "node");
    expect_error<InternalBug>([&] { add_gradients(f.graph, std::vector<Value*>{y}, {}, std::vector<Value*>{x}); },
                              {message});
  }
}

}  // namespace
}  // namespace backpass
