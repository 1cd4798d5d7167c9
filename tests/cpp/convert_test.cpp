#include "support/convert.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "backpass/error.hpp"
#include "ops/pointwise/string_cast.hpp"
#include "ops/quantization/quantize.hpp"
#include "support/element_cast.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

constexpr DType kSmall[] = {DType::float8e4m3fn, DType::float8e4m3fnuz, DType::float8e5m2, DType::float8e5m2fnuz,
                            DType::float8e8m0,   DType::float6e2m3,     DType::float6e3m2, DType::float4e2m1,
                            DType::int4,         DType::uint4,          DType::int2,       DType::uint2};

// Exactly as large as the elements, so that a sanitizer sees any byte too many.
std::vector<std::byte> buffer(DType dtype, std::int64_t n) { return std::vector<std::byte>(byte_size(dtype, n)); }

TEST(Convert, SmallFormatsRoundTripAtAnyLength) {
  for (DType dtype : kSmall) {
    for (std::int64_t n : {0, 1, 2, 3, 5, 7, 8, 511, 512, 513, 1027}) {
      std::vector<float> values(static_cast<std::size_t>(n));
      for (std::int64_t i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = i % 2 == 0 ? 1.0F : 0.5F;
      if (plain_type(dtype) != DType::float32) std::fill(values.begin(), values.end(), 1.0F);
      std::vector<std::byte> packed = buffer(dtype, n);
      std::vector<float> back(values.size(), -1.0F);
      Conversion(DType::float32, dtype).serial(values.data(), packed.data(), n);
      Conversion(dtype, DType::float32).serial(packed.data(), back.data(), n);
      EXPECT_EQ(values, back) << name_of(dtype) << " " << n;
    }
  }
}

TEST(Convert, SameForAnyNumberOfThreads) {
  const std::int64_t n = 200'003;
  std::vector<float> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i)) * 7;
  for (DType dtype : kSmall) {
    std::vector<std::byte> one = buffer(dtype, n);
    std::vector<std::byte> many = buffer(dtype, n);
    const Conversion conversion(DType::float32, dtype);
    conversion.serial(values.data(), one.data(), n);
    const ThreadScope threads(3);
    conversion.parallel(values.data(), many.data(), n);
    EXPECT_EQ(one, many) << name_of(dtype);
  }
}

TEST(Convert, ElementsOfOneSizeMayShareMemory) {
  std::vector<float> values(1001);
  std::iota(values.begin(), values.end(), -500.0F);
  convert_loop(DType::float32, DType::int32)(values.data(), values.data(), 1001);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::int32_t>(values[i]), static_cast<std::int32_t>(i) - 500);
  }
}

TEST(Convert, EveryElementIsTreatedAlikeWhereverItStands) {
  const float odd[] = {std::nanf("0x7"), 65519.99F, 1e-8F, -0.0F, 3e9F, -2.5F};
  for (DType to : {DType::float16, DType::int32, DType::uint8, DType::boolean}) {
    for (float value : odd) {
      std::vector<float> values(83, value);
      std::vector<std::byte> out = buffer(to, 83);
      convert_loop(DType::float32, to)(values.data(), out.data(), 83);
      const auto size = static_cast<std::ptrdiff_t>(byte_size(to, 1));
      for (std::ptrdiff_t i = 1; i < 83; ++i) {
        EXPECT_TRUE(std::equal(out.begin(), out.begin() + size, out.begin() + i * size)) << name_of(to) << " " << value;
      }
    }
  }
}

TEST(Convert, RoundToOddIsHarmlessForASecondRounding) {
  EXPECT_EQ(static_cast<float>(Half(round_to_odd(1 + 0x1p-11 + 0x1p-40))), 1 + 0x1p-10F);
  EXPECT_EQ(static_cast<float>(Half(round_to_odd(1 + 0x1p-11))), 1.0F);
  EXPECT_EQ(round_to_odd(1.5), 1.5F);
  EXPECT_EQ(round_to_odd(1e300), std::numeric_limits<float>::max());
  EXPECT_EQ(round_to_odd(-1e-300), -std::numeric_limits<float>::denorm_min());
  EXPECT_TRUE(std::isinf(round_to_odd(std::numeric_limits<double>::infinity())));
  EXPECT_TRUE(std::isnan(round_to_odd(std::numeric_limits<double>::quiet_NaN())));
}

TEST(Convert, RefusesWhatIsNoNumber) {
  EXPECT_THROW(Conversion(DType::string, DType::float32), Unsupported);
  EXPECT_THROW(Conversion(DType::float32, DType::complex64), Unsupported);
  EXPECT_EQ(convert_loop(DType::int4, DType::float32), nullptr);
}

TEST(StringCast, PackedElements) {
  const std::vector<std::string> texts{"1", "-2", "3", "-8", "7"};
  std::vector<std::byte> packed = buffer(DType::int4, 5);
  strings_to_numbers("[Cast 'c']", texts.data(), DType::int4, packed.data(), 5, {});
  std::vector<std::string> back(5);
  numbers_to_strings(DType::int4, packed.data(), back.data(), 5);
  EXPECT_EQ(texts, back);
}

TEST(ScaleLayout, RunsCoverEveryElementOnce) {
  for (const ScaleLayout& layout :
       {ScaleLayout{.kind = ScaleLayout::Kind::axis, .extent = 5, .inner = 3},
        ScaleLayout{.kind = ScaleLayout::Kind::axis, .extent = 15},
        ScaleLayout{.kind = ScaleLayout::Kind::block, .extent = 5, .inner = 3, .block = 2, .blocks = 3},
        ScaleLayout{.kind = ScaleLayout::Kind::block, .extent = 15, .block = 4, .blocks = 4}}) {
    for (std::int64_t begin = 0; begin < 30; begin += 7) {
      std::int64_t at = begin;
      layout.for_each_run(begin, 30, [&](std::int64_t first, std::int64_t n, std::int64_t index, std::int64_t step) {
        EXPECT_EQ(first, at);
        EXPECT_GT(n, 0);
        for (std::int64_t i = 0; i < n; ++i) {
          const std::int64_t row = (first + i) / layout.inner;
          const std::int64_t position = row % layout.extent;
          std::int64_t wanted = position;
          if (layout.kind == ScaleLayout::Kind::block) {
            wanted = (row / layout.extent * layout.blocks + position / layout.block) * layout.inner +
                     (first + i) % layout.inner;
          }
          EXPECT_EQ(index + i * step, wanted);
        }
        at += n;
      });
      EXPECT_EQ(at, 30);
    }
  }
}

}  // namespace
}  // namespace backpass
