// Random bits many at a time against one by one, on every instruction set this machine has.
#include "ops/random/dropout_kernel.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <vector>

#include "kernel_testing.hpp"

namespace backpass {
namespace {

// The last one carries from the lower to the upper half of a block's index.
constexpr std::int64_t kFirst[] = {0, 4, 8192, (std::int64_t{1} << 34) - 64};
constexpr std::int64_t kSizes[] = {0, 1, 3, 4, 7, 8, 9, 15, 16, 31, 32, 33, 63, 64, 65, 127, 1000};

TEST(DropoutKernel, BitsAreThoseOfEachElement) {
  const Philox random(0x123456789abcdef0U, 0xfedcba9876543210U);
  on_every_target([&] {
    for (std::int64_t first : kFirst) {
      for (std::int64_t n : kSizes) {
        const std::unique_ptr<std::uint32_t[]> bits(new std::uint32_t[static_cast<std::size_t>(n)]);
        philox_bits(random, first, n, bits.get());
        for (std::int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(bits[static_cast<std::size_t>(i)], random.bits(static_cast<std::uint64_t>(first + i)))
              << "first " << first << ", n " << n << ", element " << i;
        }
      }
    }
  });
}

TEST(DropoutKernel, FlagsAreDrawnFromAnywhere) {
  const Philox random(7, 3);
  on_every_target([&] {
    for (std::uint32_t threshold : {0U, 0x40000000U, 0x80000001U, 0xffffffffU}) {
      for (std::int64_t first : {0, 1, 2, 3, 4, 129, 8191}) {
        for (std::int64_t n : kSizes) {
          const std::unique_ptr<bool[]> room(new bool[static_cast<std::size_t>(n) + 3]);
          const bool* kept = draw_kept(random, first, n, threshold, room.get());
          for (std::int64_t i = 0; i < n; ++i) {
            ASSERT_EQ(kept[i], random.bits(static_cast<std::uint64_t>(first + i)) >= threshold)
                << "first " << first << ", n " << n << ", element " << i;
          }
        }
      }
    }
  });
}

TEST(DropoutKernel, KeptElementsAreScaled) {
  const Philox random(7, 3);
  on_every_target([&] {
    for (std::uint32_t threshold : {0U, 1U, 0x40000000U, 0x80000000U, 0xf0000000U, 0xffffffffU}) {
      for (std::int64_t n : kSizes) {
        std::vector<float> x(static_cast<std::size_t>(n)), want(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
          x[i] = i % 5 == 3 ? std::numeric_limits<float>::infinity() : static_cast<float>(i) - 10;
          want[i] = random.bits(4 + i) >= threshold ? x[i] * 1.25F : 0;
        }
        std::vector<float> y(x.size());
        keep_scaled(random, 4, n, threshold, 1.25F, x.data(), y.data());
        EXPECT_EQ(y, want) << "n " << n << ", threshold " << threshold;
        keep_scaled(random, 4, n, threshold, 1.25F, x.data(), x.data());
        EXPECT_EQ(x, want) << "in place";
      }
    }
  });
}

}  // namespace
}  // namespace backpass
