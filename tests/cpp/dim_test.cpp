#include "graph/dim.hpp"

#include <gtest/gtest.h>

namespace backpass {
namespace {

const Dim kA = Dim::symbol("a");
const Dim kB = Dim::symbol("b");

TEST(Dim, NumbersBehaveLikeNumbers) {
  EXPECT_EQ(Dim(3) * Dim(4) + Dim(1), Dim(13));
  EXPECT_EQ(floor_div(Dim(-7), Dim(2)), Dim(-4));
  EXPECT_EQ(ceil_div(Dim(7), Dim(2)), Dim(4));
  EXPECT_EQ(min(Dim(2), Dim(5)), Dim(2));
}

TEST(Dim, EqualExpressionsAreRecognised) {
  EXPECT_EQ(kA + kB, kB + kA);
  EXPECT_EQ((kA + 1) * (kA - 1), kA * kA - 1);
  EXPECT_EQ(kA - kA, Dim(0));
  EXPECT_FALSE(kA == kB);
  EXPECT_FALSE(kA == Dim(1));
}

TEST(Dim, ExactQuotientsAreSimplified) {
  EXPECT_EQ(floor_div(kA * kB * 6, kB * 2), kA * 3);
  EXPECT_EQ(floor_div(kA * kB, kA * kB), Dim(1));
  EXPECT_EQ(floor_div(kA, kB), floor_div(kA, kB)) << "inexact quotients equal themselves";
  EXPECT_FALSE(floor_div(kA, Dim(2)) == kA);
}

TEST(Dim, PrintsReadably) {
  EXPECT_EQ((kA * 2 + kB - 1).str(), "-1+2*a+b");
  EXPECT_EQ(to_string(Shape{kA, Dim(3)}), "[a,3]");
}

TEST(Dim, SubstitutionReplacesSymbols) {
  std::map<std::string, Dim> known{{"a", Dim(4)}};
  EXPECT_EQ((kA * kB + kA).substituted(known), kB * 4 + 4);
}

TEST(Dim, OverflowAndDivisionByZeroAreRefused) {
  Dim huge = std::int64_t{1} << 62;
  EXPECT_THROW(huge * huge, InvalidInput);
  EXPECT_THROW(huge + huge, InvalidInput);
  EXPECT_THROW(floor_div(kA, Dim(0)), InvalidInput);
}

}  // namespace
}  // namespace backpass
