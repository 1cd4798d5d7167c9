#include "training/linear_schedule.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace backpass {
namespace {

std::vector<float> rates(const LinearSchedule& schedule, std::int64_t count) {
  std::vector<float> result;
  for (std::int64_t step = 0; step < count; ++step) result.push_back(schedule.rate(step));
  return result;
}

TEST(LinearSchedule, RisesThenFallsThenStaysAtNothing) {
  const LinearSchedule schedule{.warmup = 2, .total = 6, .initial_rate = 8};
  EXPECT_EQ(rates(schedule, 8), (std::vector<float>{0, 4, 8, 6, 4, 2, 0, 0}));
}

TEST(LinearSchedule, WithoutWarmupItStartsAtTheTop) {
  const LinearSchedule schedule{.warmup = 0, .total = 4, .initial_rate = 1};
  EXPECT_EQ(rates(schedule, 5), (std::vector<float>{1, 0.75F, 0.5F, 0.25F, 0}));
}

TEST(LinearSchedule, NothingIsDividedByNothing) {
  EXPECT_EQ(rates({.warmup = 2, .total = 2, .initial_rate = 1}, 4), (std::vector<float>{0, 0.5F, 0, 0}));
  EXPECT_EQ(rates({.warmup = 0, .total = 0, .initial_rate = 1}, 2), (std::vector<float>{0, 0}));
}

TEST(LinearSchedule, LongTrainingsKeepTheirDigits) {
  const LinearSchedule schedule{.warmup = 0, .total = 100'000'000, .initial_rate = 1};
  EXPECT_EQ(schedule.rate(99'999'999), 1e-8F);
}

}  // namespace
}  // namespace backpass
