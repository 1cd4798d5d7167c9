#include "gradient/rule.hpp"

#include "expect_error.hpp"
#include "gradient_testing.hpp"

namespace backpass {
namespace {

TEST(Rule, SumsBackToTheShapeThatWasBroadcast) {
  const std::vector<std::pair<Dims, Dims>> table = {
      {{2, 3}, {2, 3}}, {{2, 3}, {3}}, {{2, 3}, {2, 1}}, {{2, 3}, {1, 1}}, {{2, 3}, {}}, {{4, 2, 3}, {2, 1}},
  };
  for (bool symbolic : {false, true}) {
    for (const auto& [from, to] : table) {
      RuleFixture f;
      std::vector<std::string> names(to.size());
      for (std::size_t i = 0; symbolic && i < names.size(); ++i) names[i] = "n" + std::to_string(i);
      Value* dy = f.input(from);
      Value* like = f.input(to, names);
      GradientContext g = f.context(f.b.op("Identity", {like}), {dy});
      Value* got = g.reduce_like(dy, like);
      f.graph.outputs = {got};
      const Tensor sum = f.run().at(0);
      EXPECT_EQ(sum.dims(), to);
      double all = 0;
      for (double v : f.fed(dy).to_doubles()) all += v;
      double kept = 0;
      for (double v : sum.to_doubles()) kept += v;
      EXPECT_NEAR(kept, all, 1e-12) << to_string(from) << " to " << to_string(to);
    }
  }
}

TEST(Rule, SumsAlongTheRightAxis) {
  RuleFixture f;
  Value* dy = f.input({2, 3});
  f.fed(dy) = Tensor::from<double>(DType::float64, {2, 3}, std::vector<double>{1, 2, 3, 10, 20, 30});
  Value* like = f.input({2, 1});
  GradientContext g = f.context(f.b.op("Identity", {like}), {dy});
  EXPECT_EQ(f.contents(g.reduce_like(dy, like)), (std::vector<double>{6, 60}));
}

TEST(Rule, AKnownExtentThatMeetsASymbolIsTheSame) {
  RuleFixture f;
  Value* dy = f.input({2, 3}, {"n", "m"});
  Value* like = f.input({2, 1});
  GradientContext g = f.context(f.b.op("Identity", {like}), {dy});
  Value* sum = g.reduce_like(dy, like);
  EXPECT_EQ(f.contents(sum).size(), 2U);
  EXPECT_EQ(f.run().at(0).dims(), (Dims{2, 1}));
}

TEST(Rule, NumbersHaveTheElementTypeOfWhatFlowsBack) {
  RuleFixture f;
  Value* x = f.PassFixture::input({2}, DType::float32);
  Value* dy = f.input({2});
  GradientContext g = f.context(f.b.op("Identity", {x}), {dy});
  EXPECT_EQ(g.one()->type.dtype, DType::float64);
  EXPECT_EQ(g.one(x)->type.dtype, DType::float32);
  EXPECT_EQ(g.cast_like(dy, dy), dy);
}

TEST(Rule, ExtentsAreConstantsWhereTheyAreKnown) {
  RuleFixture f;
  Value* x = f.input({2, 3}, {"n"});
  Value* dy = f.input({2, 3});
  GradientContext g = f.context(f.b.op("Identity", {x}), {dy});
  EXPECT_TRUE(g.shape_of(dy)->constant.has_value());
  EXPECT_TRUE(g.extent(x, -1)->constant.has_value());
  EXPECT_FALSE(g.shape_of(x)->constant.has_value());
  EXPECT_EQ(f.contents(g.extent(x, 0)), std::vector<double>{2});
  EXPECT_EQ(f.contents(g.shape_of(x)), (std::vector<double>{2, 3}));
  EXPECT_EQ(f.contents(g.size_of(x)), std::vector<double>{6});
}

TEST(Rule, NothingIsEmittedForTheSameShape) {
  RuleFixture f;
  Value* x = f.input({2, 3});
  Value* dy = f.input({2, 3});
  GradientContext g = f.context(f.b.op("Identity", {x}), {dy});
  EXPECT_EQ(g.reshape_like(dy, x), dy);
  EXPECT_EQ(g.expand_like(dy, x), dy);
  EXPECT_EQ(g.reduce_like(dy, x), dy);
  EXPECT_EQ(g.sum(dy, {}, true), dy);
}

TEST(Rule, AnswersForInputsThatWantNothingAreDropped) {
  RuleFixture f;
  Value* a = f.input({2});
  Value* c = f.input({2});
  Value* dy = f.input({2});
  GradientContext g = f.context(f.b.op("Mul", {a, c}), {dy});
  f.active.erase(c);
  EXPECT_TRUE(g.wants(std::size_t{0}));
  EXPECT_FALSE(g.wants(std::size_t{1}));
  g.set_reduced(1, dy);
  expect_error<InternalBug>([&] { g.check_complete(); }, {"gradient rule says nothing of input 0"});
  g.set_zero(0);
  g.check_complete();
  ASSERT_EQ(g.results().size(), 1U);
  EXPECT_EQ(g.results()[0], (std::pair<Value*, Value*>{a, nullptr}));
}

TEST(Rule, AnOutputThatNothingFlowsBackToHasZeros) {
  RuleFixture f;
  Value* x = f.input({4});
  const std::vector<Value*> halves = f.b.ops("Split", {x}, 2, {{"num_outputs", std::int64_t{2}}});
  GradientContext g = f.context(halves[0], {nullptr, f.input({2})});
  EXPECT_FALSE(g.has_dy(0));
  EXPECT_EQ(f.contents(g.dy(0)), (std::vector<double>{0, 0}));
}

TEST(Rule, AnUnknownRankIsRefusedByName) {
  RuleFixture f;
  Value* x = f.graph.add_value("x", Type::tensor(DType::float64));
  f.graph.inputs.push_back(x);
  Value* y = f.b.op("Identity", {x});
  y->producer->name = "node";
  GradientContext g = f.context(y, {x});
  expect_error<Unsupported>([&] { g.rank(x); }, {"[Identity 'node'] gradient: got 'x' of unknown rank"});
}

}  // namespace
}  // namespace backpass
