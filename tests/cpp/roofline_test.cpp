#include <gtest/gtest.h>

#include <vector>

#include "backpass/profile.hpp"

namespace backpass {
namespace {

// 100 GF/s; 50 GB/s for up to 1000 bytes, 10 GB/s for what is more.
const MachineLimits kMachine{1, 100, {{1000, 50}, {10000, 10}}};

StepRecord step(const char* op, const char* shapes, double us, std::int64_t bytes, std::int64_t flops) {
  return {"", op, shapes, 0, us, bytes, flops, 1};
}

TEST(Roofline, rates_depend_on_how_much_is_moved) {
  EXPECT_EQ(kMachine.gbs(0), 50);
  EXPECT_EQ(kMachine.gbs(1000), 50);
  EXPECT_EQ(kMachine.gbs(1001), 10);
  EXPECT_EQ(kMachine.gbs(1'000'000), 10);
  EXPECT_DOUBLE_EQ(kMachine.memory_us(500), 0.01);
  EXPECT_DOUBLE_EQ(kMachine.memory_us(100'000), 10);
  EXPECT_DOUBLE_EQ(kMachine.arithmetic_us(1'000'000), 10);
}

TEST(Roofline, nothing_known_is_no_limit) {
  const MachineLimits nothing;
  EXPECT_EQ(nothing.gbs(5), 0);
  EXPECT_EQ(nothing.memory_us(5), 0);
  EXPECT_EQ(nothing.arithmetic_us(5), 0);
}

TEST(Roofline, each_step_has_the_longer_of_two_limits) {
  const std::vector<StepRecord> records{step("MatMul", "a", 40, 100'000, 3'000'000),  // arithmetic 30 us, memory 10
                                        step("MatMul", "b", 30, 200'000, 1'000'000),  // 10 and 20
                                        step("Relu", "a", 80, 400'000, 0)};           // 0 and 40
  const ProfileSummary found = summarize(records, kMachine, ProfileRows::by_operator);
  EXPECT_DOUBLE_EQ(found.duration_us, 150);
  EXPECT_DOUBLE_EQ(found.limit_us, 90);
  ASSERT_EQ(found.rows.size(), 2U);
  EXPECT_EQ(found.rows[0].op, "Relu");  // takes longest
  EXPECT_DOUBLE_EQ(found.rows[0].limit_us, 40);
  const ProfileRow& products = found.rows[1];
  EXPECT_EQ(products.calls, 2);
  EXPECT_EQ(products.shapes, "");
  EXPECT_DOUBLE_EQ(products.limit_us, 50);
  EXPECT_DOUBLE_EQ(products.arithmetic_us, 40);
  EXPECT_DOUBLE_EQ(products.memory_us, 30);
  EXPECT_DOUBLE_EQ(products.flops, 4e6);
  EXPECT_DOUBLE_EQ(products.bytes, 3e5);
  EXPECT_EQ(summarize(records, kMachine, ProfileRows::by_shapes).rows.size(), 3U);
}

TEST(Roofline, no_steps_have_no_rows) {
  const ProfileSummary found = summarize({}, kMachine, ProfileRows::by_shapes);
  EXPECT_TRUE(found.rows.empty());
  EXPECT_EQ(found.duration_us, 0);
  EXPECT_EQ(found.limit_us, 0);
}

TEST(Roofline, what_is_told_is_not_measured) {
  const MachineLimits told = told_limits(7, 3);
  EXPECT_EQ(told.threads, 0);
  EXPECT_EQ(told.gflops, 7);
  EXPECT_EQ(told.gbs(1), 3);
  EXPECT_EQ(told.gbs(1'000'000'000), 3);
  const MachineLimits half = told_limits(7, 0, 1);
  EXPECT_EQ(half.gflops, 7);
  EXPECT_GT(half.gbs(1'000'000'000), 0);
}

TEST(Roofline, limits_are_told_in_a_line) {
  EXPECT_EQ(kMachine.text(), "100.0 GF/s, 50.0 to 10.0 GB/s, 1 thread");
  EXPECT_EQ(told_limits(7, 3).text(), "7.0 GF/s, 3.0 GB/s");
  EXPECT_EQ((MachineLimits{2, 1, {}}).text(), "1.0 GF/s, 2 threads");
}

TEST(Roofline, a_machine_is_measured_once) {
  const MachineLimits first = machine_limits(1);
  EXPECT_EQ(first.threads, 1);
  EXPECT_GT(first.gflops, 0.1);
  ASSERT_FALSE(first.memory.empty());
  std::int64_t bytes = 0;
  for (const MachineLimits::Memory& m : first.memory) {
    EXPECT_GT(m.bytes, bytes);
    EXPECT_GT(m.gbs, 0.1);
    bytes = m.bytes;
  }
  const MachineLimits again = machine_limits(1);
  EXPECT_EQ(again.gflops, first.gflops);
  EXPECT_EQ(again.memory.back().gbs, first.memory.back().gbs);
}

}  // namespace
}  // namespace backpass
