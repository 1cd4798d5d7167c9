// Sizes that data decide: the rest of the program is planned when they are known.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "allocations.hpp"
#include "pass_testing.hpp"
#include "plan/schedule.hpp"

namespace backpass {
namespace {

/// `count` of ten rows are chosen.
Tensor chosen(std::int64_t count, std::int64_t of = 10) {
  Tensor t(DType::boolean, {of});
  for (std::int64_t i = 0; i < of; ++i) t.as<bool>()[i] = i < count;
  return t;
}

struct Rows : PassFixture {
  Value* x = input({10, 16}, DType::float32, {"n"});
  Value* mask = nullptr;

  Rows() {
    mask = graph.add_value("mask", Type::tensor(DType::boolean, Shape{Dim::symbol("n")}));
    graph.inputs.push_back(mask);
    feeds.emplace_back(chosen(4));
  }

  Value* compress(Value* from, Value* by) { return b.op("Compress", {from, by}, {{"axis", std::int64_t{0}}}); }

  Value* layers(Value* h, int count) {
    for (int i = 0; i < count; ++i)
      h = b.op("Relu", {b.op("Add", {b.op("MatMul", {h, weights({16, 16})}), weights({16})})});
    return h;
  }
};

TEST(FoundSizes, WhatFollowsIsPlanned) {
  Rows f;
  f.output(f.layers(f.compress(f.x, f.mask), 3));
  std::unique_ptr<Program> program = make_program(f.graph);
  Executable executable(*program, 4, nullptr);
  for (std::int64_t count : {4, 0, 10, 1, 4}) {
    f.feeds[1] = chosen(count);
    const std::vector<RuntimeValue> got = executable.run(f.feeds);
    PassFixture::expect_near(f.run()[0], got[0].tensor, 1e-6);
  }
  const PlanReport plan = executable.plan(f.feeds);
  EXPECT_EQ(plan.late_steps, 1) << plan.text;
  EXPECT_GE(plan.peak_bytes, 10 * 16 * 4) << "at the largest number of rows";
}

TEST(FoundSizes, ValuesFromBeforeStayWhereTheyAre) {
  Rows f;
  Value* before = f.layers(f.x, 2);  // read again after the size is known
  Value* rows = f.compress(before, f.mask);
  Value* other = f.compress(
      f.layers(rows, 2), f.b.op("Greater", {f.b.op("ReduceMax", {rows, f.b.ints({1})}, {{"keepdims", std::int64_t{0}}}),
                                            f.b.scalar(0.1, DType::float32)}));
  f.output(f.b.op("Add", {f.b.op("ReduceSum", {other}), f.b.op("ReduceSum", {before})}));
  f.output(before);
  f.output(rows);
  std::unique_ptr<Program> program = make_program(f.graph);
  Executable executable(*program, 4, nullptr);
  for (int round = 0; round < 3; ++round) {
    for (std::int64_t count : {7, 0, 10, 2}) {
      f.feeds[0] = f.random({10, 16});
      f.feeds[1] = chosen(count);
      const std::vector<RuntimeValue> got = executable.run(f.feeds);
      const std::vector<Tensor> expected = f.run();
      for (std::size_t k = 0; k < expected.size(); ++k) PassFixture::expect_near(expected[k], got[k].tensor, 1e-5);
    }
  }
}

TEST(FoundSizes, ThoseThatDoNotDependOnEachOtherComeTogether) {
  Rows f;
  Value* first = f.layers(f.compress(f.x, f.mask), 1);
  Value* second = f.layers(f.compress(f.x, f.b.op("Not", {f.mask})), 1);
  f.output(f.b.op("Add", {f.b.op("ReduceSum", {first}), f.b.op("ReduceSum", {second})}));
  const std::vector<const Node*> order = order_to_run(f.graph);
  ASSERT_EQ(order.size(), f.graph.nodes().size());
  std::vector<std::ptrdiff_t> places;
  for (auto it = order.begin(); it != order.end(); ++it) {
    if ((*it)->op == "Compress") places.push_back(it - order.begin());
  }
  ASSERT_EQ(places.size(), 2U);
  EXPECT_LE(places[1] - places[0], 2) << "with what the second one needs between them";
  std::unique_ptr<Program> program = make_program(f.graph);
  std::unique_ptr<Binding> binding = make_binding(*program, f.feeds);
  EXPECT_EQ(binding->found.size(), 2U);
  PassFixture::expect_near(f.run()[0], f.run_planned()[0], 1e-5);
}

TEST(FoundSizes, ANewSizeCostsLittleAndASeenOneNearlyNothing) {
  Rows f;
  Value* h = f.compress(f.x, f.mask);
  while (f.graph.nodes().size() < 500) h = f.layers(h, 1);
  f.output(h);
  std::unique_ptr<Program> program = make_program(f.graph);
  constexpr std::int64_t kRows = 64;
  f.feeds[0] = f.random({kRows, 16});
  f.feeds[1] = chosen(3, kRows);
  std::unique_ptr<Binding> root = make_binding(*program, f.feeds);
  ASSERT_EQ(root->found.size(), 1U);
  auto best = [&](auto&& size_of) {
    double shortest = 1e9;
    for (std::int64_t i = 0; i < 300; ++i) {
      const std::vector<RuntimeValue> found{Tensor(DType::float32, {size_of(i), 16})};
      const auto start = std::chrono::steady_clock::now();
      EXPECT_NE(rest_of(*root, found), nullptr);
      const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
      if (i > 0) shortest = std::min(shortest, time.count());
    }
    return shortest;
  };
  const double seen = best([](std::int64_t) { return 5; });
  const double fresh = best([](std::int64_t i) { return i % kRows; });
  if (BACKPASS_SANITIZED) return;  // times mean nothing under a sanitizer
  EXPECT_LT(seen, 50.0) << "microseconds";
  EXPECT_LT(fresh, 1000.0) << "microseconds";
}

}  // namespace
}  // namespace backpass
