// Which values share memory, for how long it is needed, and what that adds up to.
#include "plan/aliases.hpp"

#include <gtest/gtest.h>

#include "pass_testing.hpp"
#include "plan/peak.hpp"

namespace backpass {
namespace {

struct AliasFixture : PassFixture {
  std::unique_ptr<Program> program;

  void plan() { program = make_program(graph); }

  int number(const Value* v) const {
    auto it = std::find(program->values.begin(), program->values.end(), v);
    return static_cast<int>(it - program->values.begin());
  }
  int memory(const Value* v) const { return program->aliases.memory[static_cast<std::size_t>(number(v))]; }
  const Memory& home(const Value* v) const { return program->aliases.of(number(v)); }
};

TEST(Aliases, ViewsShareTheMemoryOfTheirSource) {
  AliasFixture f;
  Value* x = f.input({4, 6}, DType::float32, {"n"});
  Value* flat = f.b.op("Reshape", {x, f.b.ints({-1})});
  Value* sum = f.b.op("ReduceSum", {f.b.op("Reshape", {flat, f.b.ints({-1, 3})})});
  f.output(sum);
  f.plan();
  EXPECT_EQ(f.memory(flat), f.memory(x));
  EXPECT_EQ(f.home(flat).home, Memory::Home::input);
  EXPECT_EQ(f.home(flat).last, 2) << "the sum reads it through two views";
  EXPECT_EQ(f.home(sum).home, Memory::Home::output);
}

TEST(Aliases, ResultsTakeThePlaceOfOperandsWithoutNumbers) {
  AliasFixture f;
  Value* x = f.input({4, 6}, DType::float32, {"n", "m"});
  Value* a = f.b.op("MatMul", {x, f.b.op("Transpose", {x})});
  Value* b = f.b.op("Exp", {a});
  Value* c = f.b.op("Add", {b, f.b.op("Transpose", {b})});
  f.output(f.b.op("ReduceSum", {c}));
  f.plan();
  EXPECT_EQ(f.memory(a), f.memory(b));
  EXPECT_EQ(f.memory(b), f.memory(c));
  EXPECT_EQ(f.home(a).bytes, Dim(4) * Dim::symbol("n") * Dim::symbol("n"));
}

TEST(Aliases, AnOperandThatIsReadUnderOtherExtentsIsNotWrittenOver) {
  AliasFixture f;
  Value* x = f.input({3, 1}, DType::float32, {"n"});
  Value* a = f.b.op("Exp", {x});
  Value* turned = f.b.op("Reshape", {a, f.b.ints({1, -1})});
  Value* square = f.b.op("Mul", {a, turned});
  f.output(f.b.op("Exp", {square}));
  f.plan();
  EXPECT_NE(f.memory(a), f.memory(square));
  EXPECT_LT(f.home(square).over, 0);
}

TEST(Aliases, NumbersDecideWhereSymbolsDoNot) {
  AliasFixture f;
  Value* x = f.input({4, 6}, DType::float32, {"n", "m"});
  Value* y = f.input({4, 6}, DType::float32, {"k", "m"});
  Value* a = f.b.op("Softmax", {x});
  Value* sum = f.b.op("Add", {a, y});
  f.output(f.b.op("Softmax", {sum}));
  f.plan();
  EXPECT_NE(f.memory(a), f.memory(sum));
  EXPECT_EQ(f.home(sum).over, f.number(a));
  std::unique_ptr<Binding> equal = make_binding(*f.program, f.feeds);
  EXPECT_EQ(equal->report.in_place, 2) << "the sum, and the last step in any case";
  f.feeds[0] = f.random({1, 6});
  std::unique_ptr<Binding> broadcast = make_binding(*f.program, f.feeds);
  EXPECT_EQ(broadcast->report.in_place, 1);
  for (std::size_t rows : {1, 4}) {
    f.feeds[0] = f.random({static_cast<std::int64_t>(rows), 6});
    PassFixture::expect_near(f.run()[0], f.run_planned()[0], 1e-6);
  }
}

TEST(Aliases, WhatIsOnlyAskedForItsExtentsIsNeededByNobody) {
  AliasFixture f;
  Value* x = f.input({3, 4}, DType::float32, {"n"});
  Value* unneeded = f.b.op("Exp", {x});
  f.output(f.b.op("Expand", {f.b.scalar(2.5, DType::float32), f.b.op("Shape", {unneeded})}));
  f.plan();
  EXPECT_FALSE(f.program->aliases.is_needed[0]);
  EXPECT_TRUE(f.program->aliases.is_needed[2]);
  EXPECT_EQ(f.home(x).last, -1) << "only a step that nobody needs reads it";
}

TEST(Peak, IsAnExpressionThatBindingsAgreeWith) {
  PassFixture f;
  Value* x = f.input({4, 16}, DType::float32, {"n"});
  Value* wide = f.b.op("Softmax", {f.b.op("MatMul", {x, f.weights({16, 64})})});
  Value* turned = f.b.op("Transpose", {wide});
  f.output(f.b.op("MatMul", {turned, f.b.op("Softmax", {x})}));
  std::unique_ptr<Program> program = make_program(f.graph);
  const Peak peak = find_peak(*program);
  ASSERT_TRUE(peak.unknown.empty());
  ASSERT_EQ(peak.sums.size(), 1U) << peak.str();
  for (std::int64_t n : {1, 4, 33}) {
    f.feeds[0] = f.random({n, 16});
    std::unique_ptr<Binding> binding = make_binding(*program, f.feeds);
    const std::int64_t expected = peak.sums[0].substituted({{"n", Dim(n)}}).value();
    std::int64_t scratch = 0;
    for (const BoundStep& s : binding->steps) scratch = std::max(scratch, static_cast<std::int64_t>(s.scratch_bytes));
    EXPECT_GE(binding->report.peak_bytes, expected);
    EXPECT_LE(binding->report.peak_bytes, expected + scratch + 64 * 4) << peak.str();
  }
}

TEST(Peak, KeepsTheSumsOfWhichEachMayBeTheLargest) {
  PassFixture f;
  Value* x = f.input({4, 8}, DType::float32, {"n"});
  Value* rows = f.b.op("ReduceSum", {f.b.op("Softmax", {x})});
  Value* columns = f.b.op("ReduceSum", {f.b.op("Softmax", {f.weights({64, 64})})});
  f.output(f.b.op("Add", {rows, columns}));
  std::unique_ptr<Program> program = make_program(f.graph);
  const Peak peak = find_peak(*program);
  EXPECT_EQ(peak.sums.size(), 2U) << peak.str();
  EXPECT_NE(peak.str().find("max("), std::string::npos) << peak.str();
}

}  // namespace
}  // namespace backpass
