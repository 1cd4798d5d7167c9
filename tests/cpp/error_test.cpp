#include "backpass/error.hpp"

#include <gtest/gtest.h>

namespace backpass {
namespace {

TEST(Error, ConcatJoinsItsArguments) { EXPECT_EQ(concat("got ", 3, ", expected ", 4), "got 3, expected 4"); }

TEST(Error, EveryKindIsAnError) {
  EXPECT_THROW(throw InvalidInput("x"), Error);
  EXPECT_THROW(throw Unsupported("x"), Error);
  EXPECT_THROW(throw InternalBug("x"), Error);
}

}  // namespace
}  // namespace backpass
