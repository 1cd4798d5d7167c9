#include "plan/arena.hpp"

#include <gtest/gtest.h>

#include <random>

namespace backpass {
namespace {

void expect_no_overlap(const std::vector<Lifetime>& lifetimes, const ArenaPlan& plan) {
  for (std::size_t i = 0; i < lifetimes.size(); ++i) {
    EXPECT_EQ(plan.offsets[i] % 64, 0U);
    EXPECT_LE(plan.offsets[i] + lifetimes[i].bytes, plan.peak);
    for (std::size_t j = 0; j < i; ++j) {
      bool together = lifetimes[i].first <= lifetimes[j].last && lifetimes[j].first <= lifetimes[i].last;
      bool apart = plan.offsets[i] + lifetimes[i].bytes <= plan.offsets[j] ||
                   plan.offsets[j] + lifetimes[j].bytes <= plan.offsets[i];
      EXPECT_TRUE(!together || apart || lifetimes[i].bytes == 0 || lifetimes[j].bytes == 0) << i << " and " << j;
    }
  }
}

TEST(Arena, AChainNeedsTwoBuffers) {
  std::vector<Lifetime> chain;
  for (int s = 0; s < 10; ++s) chain.push_back({1024, s, s + 1});
  ArenaPlan plan = plan_arena(chain);
  EXPECT_EQ(plan.peak, 2048U);
  EXPECT_EQ(plan.lower_bound, 2048U);
  expect_no_overlap(chain, plan);
}

TEST(Arena, EmptyAndZeroSizedBuffersAreFine) {
  EXPECT_EQ(plan_arena({}).peak, 0U);
  std::vector<Lifetime> zero{{0, 0, 5}, {64, 1, 2}};
  EXPECT_EQ(plan_arena(zero).peak, 64U);
}

TEST(Arena, RandomLifetimesNeverOverlapAndStayNearTheBound) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<Lifetime> lifetimes;
    for (int i = 0; i < 200; ++i) {
      int first = static_cast<int>(random() % 190);
      lifetimes.push_back({(random() % 64 + 1) * 256, first, first + static_cast<int>(random() % 8)});
    }
    ArenaPlan plan = plan_arena(lifetimes);
    expect_no_overlap(lifetimes, plan);
    EXPECT_GE(plan.peak, plan.lower_bound);
    EXPECT_LE(static_cast<double>(plan.peak), 1.25 * static_cast<double>(plan.lower_bound));
  }
}

}  // namespace
}  // namespace backpass
