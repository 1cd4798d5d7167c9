#include "graph/dim.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <random>

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

TEST(Dim, QuotientsByNumbersHaveOneForm) {
  EXPECT_EQ(floor_div(kA * 5 + 7, 2), kA * 2 + 3 + floor_div(kA + 1, 2));
  EXPECT_EQ(floor_div(kA * 2, 4), floor_div(kA, 2));
  EXPECT_EQ(floor_div(kA * 2 + 1, 4), floor_div(kA, 2));
  EXPECT_EQ(floor_div(kA - 1, 2) + 1, floor_div(kA + 1, 2));
}

TEST(Dim, DivRoundsTowardsZero) {
  EXPECT_EQ(truncated_div(Dim(-7), Dim(2)), Dim(-3));
  EXPECT_EQ(truncated_div(kA, Dim(2)), floor_div(kA, 2)) << "extents are not negative";
  EXPECT_FALSE(truncated_div(kA - 1, Dim(2)) == floor_div(kA - 1, 2)) << "a may be 0";
  EXPECT_FALSE(truncated_div(kA, kA) == Dim(1)) << "0 / 0 is 0";
  EXPECT_EQ(truncated_div(kA - 1, Dim(2)).substituted({{"a", Dim(0)}}), Dim(0));
}

TEST(Dim, BoundsAreProven) {
  EXPECT_TRUE(surely_at_least(kA * kB + 1, 1));
  EXPECT_FALSE(surely_at_least(kA - 1, 0));
  EXPECT_TRUE(surely_at_most(floor_div(kA, 2), kA));
  EXPECT_TRUE(surely_at_most(ceil_div(kA, 3), kA)) << "whole numbers: 3 * that is more than -3";
  EXPECT_TRUE(surely_at_most(min(kA, 5), kA));
  EXPECT_TRUE(surely_at_most(min(kA, kB) * kB, kA * kB));
  EXPECT_TRUE(surely_at_most(kA - 1, max(kA, 1) - 1));
  EXPECT_FALSE(surely_at_most(kA, kB));
}

TEST(Dim, TheSmallerAndTheLargerAreSimplifiedWhereThatIsProven) {
  EXPECT_EQ(min(kA, kA + 1), kA);
  EXPECT_EQ(max(kA, 0), kA);
  EXPECT_EQ(max(kA - 1, 0).str(), "-1+max(a,1)");
  EXPECT_EQ(min(kA - 2, 3), min(kA, 5) - 2);
  EXPECT_EQ(min(min(kA, 5), min(kA, 7)), min(kA, 5));
  EXPECT_EQ(max(kA - max(kA - 5, 0), 0), kA - max(kA - 5, 0));
}

TEST(Dim, BroadcastingLeavesOpenWhatMayBeOne) {
  EXPECT_EQ(broadcast(kA, 1), kA);
  EXPECT_EQ(broadcast(kA, 0), Dim(0));
  EXPECT_EQ(broadcast(kA + 2, kB), kA + 2);
  EXPECT_EQ(broadcast(broadcast(kA, kB), kA), broadcast(kA, kB));
  EXPECT_FALSE(broadcast(kA, kB) == kA);
  EXPECT_TRUE(are_equal_if_they_broadcast(min(kA, 512), kA));
  EXPECT_TRUE(are_equal_if_they_broadcast(min(kA + 1, 512), kA + 1));
  EXPECT_TRUE(are_equal_if_they_broadcast(unless_zero(kA, 64), kA));
  EXPECT_FALSE(are_equal_if_they_broadcast(max(kA, 512), kA)) << "a may be 1";
  EXPECT_FALSE(are_equal_if_they_broadcast(min(kA, 1), kA));
}

TEST(Dim, ZeroStandsForSomethingElse) {
  EXPECT_EQ(unless_zero(kA + 1, kB), kA + 1);
  EXPECT_EQ(unless_zero(kA, kA * kB), kA) << "where a is 0 so is a*b";
  EXPECT_EQ(unless_zero(unless_zero(kA, 3), kB), unless_zero(kA, 3)) << "which is never 0";
  EXPECT_EQ(unless_zero(kA, kB).substituted({{"a", Dim(0)}}), kB);
  EXPECT_EQ(unless_zero(kA * kB, kA).substituted({{"b", Dim(0)}}), kA);
  EXPECT_EQ(where_not_empty(floor_div(kA * kB, unless_zero(kA, 3))), kB);
}

// ---- Any expression is what numbers in place of the symbols would have given.

using Numbers = std::map<std::string, Dim>;
using Expression = std::function<Dim(const Numbers&)>;

class Expressions {
 public:
  explicit Expressions(unsigned seed) : random_(seed) {}

  Expression make(int depth) {
    if (depth == 0 || pick(6) == 0) {
      if (pick(2) == 0) return [number = Dim(pick(9) - 3)](const Numbers&) { return number; };
      std::string name(1, "ab"[pick(2)]);
      return [name](const Numbers& n) { return n.at(name); };
    }
    Expression x = make(depth - 1);
    Expression y = make(depth - 1);
    const std::int64_t by = pick(2) == 0 ? pick(4) + 1 : -pick(3) - 1;
    switch (pick(8)) {
      case 0:
        return [=](const Numbers& n) { return x(n) + y(n); };
      case 1:
        return [=](const Numbers& n) { return x(n) - y(n); };
      case 2:
        return [=](const Numbers& n) { return x(n) * y(n); };
      case 3:
        return [=](const Numbers& n) { return floor_div(x(n), by); };
      case 4:
        return [=](const Numbers& n) { return truncated_div(x(n), y(n)); };
      case 5:
        return [=](const Numbers& n) { return min(x(n), y(n)); };
      case 6:
        return [=](const Numbers& n) { return unless_zero(x(n), y(n)); };
      default:
        return [=](const Numbers& n) { return max(x(n), y(n)); };
    }
  }

 private:
  int pick(int count) { return static_cast<int>(random_() % static_cast<unsigned>(count)); }
  std::mt19937 random_;
};

TEST(Dim, ExpressionsHoldForAllNumbers) {
  const Numbers symbols{{"a", kA}, {"b", kB}};
  for (unsigned seed = 0; seed < 3000; ++seed) {
    Expressions random(seed);
    Expression f = random.make(4);
    Expression g = random.make(3);
    const Dim x = f(symbols);
    const Dim y = g(symbols);
    const bool ordered = surely_at_most(x, y);
    for (int a : {0, 1, 2, 3, 5, 8}) {
      for (int b : {0, 1, 2, 4, 7}) {
        const Numbers numbers{{"a", Dim(a)}, {"b", Dim(b)}};
        ASSERT_EQ(x.substituted(numbers), f(numbers)) << x.str() << " with a=" << a << " b=" << b << ", seed " << seed;
        if (ordered) {
          ASSERT_LE(f(numbers).value(), g(numbers).value()) << x.str() << " <= " << y.str() << ", seed " << seed;
        }
      }
    }
  }
}

TEST(Dim, PrintsReadably) {
  EXPECT_EQ((kA * 2 + kB - 1).str(), "-1+2*a+b");
  EXPECT_EQ(to_string(Shape{kA, Dim(3)}), "[a,3]");
}

TEST(Dim, SubstitutionReplacesSymbols) {
  std::map<std::string, Dim> known{{"a", Dim(4)}};
  EXPECT_EQ((kA * kB + kA).substituted(known), kB * 4 + 4);
  EXPECT_EQ(floor_div(kA + kB, 2).substituted({{"b", kA}}), kA) << "inside functions too";
  EXPECT_TRUE(floor_div(kA + kB, 2).mentions("b"));
}

TEST(Dim, ASymbolMayHaveTheNameOfAnExpression) {
  EXPECT_FALSE(Dim::symbol("1+a") == kA + 1);
  EXPECT_FALSE(Dim::symbol("min(a,5)") == min(kA, 5));
}

TEST(Dim, OverflowAndDivisionByZeroAreRefused) {
  Dim huge = std::int64_t{1} << 62;
  EXPECT_THROW(huge * huge, InvalidInput);
  EXPECT_THROW(huge + huge, InvalidInput);
  EXPECT_THROW(floor_div(kA, Dim(0)), InvalidInput);
}

}  // namespace
}  // namespace backpass
