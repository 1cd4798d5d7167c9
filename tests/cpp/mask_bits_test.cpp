// Rows of masks as bits against one element at a time, on every instruction set this machine has.
#include "ops/indexing/mask_bits.hpp"

#include <gtest/gtest.h>

#include <iterator>
#include <limits>
#include <vector>

#include "kernel_testing.hpp"
#include "support/half.hpp"

namespace backpass {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kValues[] = {0.0,
                              -0.0,
                              1.0,
                              -1e4,
                              -65504.0,
                              -kInfinity,
                              kInfinity,
                              -9.9e29,
                              -1e30,
                              -1.0001e30,
                              -3.3e38,
                              3.3e38,
                              std::numeric_limits<double>::quiet_NaN()};

/// hides(value as stored) for rows of every length around whole words.
template <class T, class Hides>
void expect_bits(DType dtype, BitRange range, const Hides& hides) {
  on_every_target([&] {
    for (const std::size_t n : {1, 3, 31, 63, 64, 65, 127, 128, 200}) {
      std::vector<T> row(n);
      for (std::size_t i = 0; i < n; ++i) row[i] = T(kValues[(i * 5 + n) % std::size(kValues)]);
      std::vector<std::uint64_t> words((n + 63) / 64, ~std::uint64_t{0});
      bits_outside(dtype, range, row.data(), static_cast<std::int64_t>(n), words.data());
      for (std::size_t i = 0; i < words.size() * 64; ++i) {
        const bool expected = i < n && !hides(row[i]);
        ASSERT_EQ((words[i / 64] >> (i % 64) & 1) != 0, expected) << name_of(dtype) << ", n " << n << ", element " << i;
      }
    }
  });
}

template <class T>
void expect_floats(DType dtype, double bound) {
  expect_bits<T>(dtype, hiding(dtype), [=](T v) { return static_cast<double>(v) <= bound; });
  expect_bits<T>(dtype, minus_infinity(dtype), [](T v) { return static_cast<double>(v) == -kInfinity; });
}

TEST(MaskBits, FloatsFarBelowZeroHide) {
  expect_floats<float>(DType::float32, -1e30);
  expect_floats<double>(DType::float64, -1e30);
  expect_floats<BFloat16>(DType::bfloat16, -1e30);
  expect_floats<Half>(DType::float16, -65504);
}

TEST(MaskBits, FalseHides) {
  struct Flag {
    std::uint8_t value = 0;
    Flag() = default;
    explicit Flag(double number) : value(number < 0 ? 1 : 0) {}
  };
  expect_bits<Flag>(DType::boolean, hiding(DType::boolean), [](Flag flag) { return flag.value == 0; });
}

}  // namespace
}  // namespace backpass
