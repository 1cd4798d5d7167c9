#include "backpass/dtype.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "backpass/error.hpp"

namespace backpass {
namespace {

TEST(DType, KnowsTheNumbersOfOnnx) {
  EXPECT_FALSE(is_known_dtype(-1));
  EXPECT_FALSE(is_known_dtype(0));
  EXPECT_TRUE(is_known_dtype(1));
  EXPECT_TRUE(is_known_dtype(28));
  EXPECT_FALSE(is_known_dtype(29));
}

TEST(DType, NamesAreNumpys) {
  EXPECT_EQ(name_of(DType::float32), "float32");
  EXPECT_EQ(name_of(DType::boolean), "bool");
  EXPECT_EQ(name_of(DType::bfloat16), "bfloat16");
  EXPECT_EQ(name_of(DType::float8e4m3fn), "float8_e4m3fn");
  EXPECT_EQ(name_of(DType::int2), "int2");
}

TEST(DType, SubByteElementsArePacked) {
  EXPECT_EQ(byte_size(DType::int4, 3), 2U);
  EXPECT_EQ(byte_size(DType::uint2, 5), 2U);
  EXPECT_EQ(byte_size(DType::float6e2m3, 5), 4U);
  EXPECT_EQ(byte_size(DType::complex128, 3), 48U);
  EXPECT_EQ(byte_size(DType::float32, 0), 0U);
}

TEST(DType, SizesThatDoNotFitAreRefused) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(byte_size(DType::uint8, most), static_cast<std::size_t>(most));
  EXPECT_EQ(byte_size(DType::int4, most), static_cast<std::size_t>(most / 2 + 1));
  EXPECT_THROW(byte_size(DType::int16, most), InvalidInput);
  EXPECT_THROW(byte_size(DType::float64, most / 8 + 1), InvalidInput);
  EXPECT_THROW(byte_size(DType::float32, -1), InvalidInput);
}

TEST(DType, FamiliesAreWhatTheHeaderSays) {
  EXPECT_TRUE(is_float(DType::bfloat16));
  EXPECT_FALSE(is_float(DType::float8e5m2));
  EXPECT_TRUE(is_integer(DType::uint64));
  EXPECT_FALSE(is_integer(DType::boolean));
  EXPECT_FALSE(is_integer(DType::int4));
  EXPECT_TRUE(is_signed_integer(DType::int8));
  EXPECT_FALSE(is_signed_integer(DType::uint8));
  EXPECT_TRUE(is_sub_byte(DType::float4e2m1));
  EXPECT_FALSE(is_sub_byte(DType::string));
}

}  // namespace
}  // namespace backpass
