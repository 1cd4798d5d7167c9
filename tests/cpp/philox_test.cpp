#include "support/philox.hpp"

#include <gtest/gtest.h>

namespace backpass {
namespace {

// Known answers published with the Random123 library.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox(0, 0).block(0), (Philox::Block{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}));
  constexpr std::uint64_t kOnes = ~std::uint64_t{0};
  EXPECT_EQ(Philox(kOnes, kOnes).block(kOnes), (Philox::Block{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU}));
}

TEST(Philox, ElementsAreFunctionsOfTheirIndex) {
  Philox random(7, 3);
  EXPECT_EQ(random.bits(9), random.block(2)[1]);
  EXPECT_EQ(random.uniform(5), Philox(7, 3).uniform(5));
  EXPECT_NE(random.uniform(5), Philox(7, 4).uniform(5));
}

TEST(Philox, UniformStaysBelowOne) {
  Philox random(1, 0);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_GE(random.uniform(i), 0);
    EXPECT_LT(random.uniform(i), 1);
    EXPECT_TRUE(std::isfinite(random.normal(i)));
  }
}

}  // namespace
}  // namespace backpass
