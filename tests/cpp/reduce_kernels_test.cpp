// The SIMD loops of reductions, softmax and normalisation against plain loops, at every length around a vector.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "kernel_testing.hpp"
#include "kernels/fold.hpp"
#include "kernels/normalize.hpp"
#include "kernels/reduce.hpp"
#include "kernels/softmax.hpp"
#include "support/philox.hpp"

namespace backpass {
namespace {

template <class T>
double plain_fold(Fold fold, const T* x, std::int64_t n, std::int64_t stride, double shift) {
  double acc = fold_identity(fold);
  for (std::int64_t i = 0; i < n; ++i) {
    auto v = static_cast<double>(x[i * stride]);
    if (fold == Fold::sum_abs) v = std::abs(v);
    if (fold == Fold::sum_square) v = (v - shift) * (v - shift);
    if (fold == Fold::sum_exp) v = std::exp(v - shift);
    acc = fold_join(fold, acc, v);
  }
  return acc;
}

constexpr Fold kFolds[] = {Fold::sum,     Fold::sum_abs, Fold::sum_square, Fold::sum_exp,
                           Fold::maximum, Fold::minimum, Fold::product};

template <class T>
class Kernels : public testing::Test {
 protected:
  static constexpr double kTolerance = sizeof(T) == 4 ? 1e-5 : 1e-12;
  static constexpr DType kType = sizeof(T) == 4 ? DType::float32 : DType::float64;
};
using Reals = testing::Types<float, double>;
TYPED_TEST_SUITE(Kernels, Reals);

TYPED_TEST(Kernels, RunsOfEveryLength) {
  using T = TypeParam;
  for (Fold fold : kFolds) {
    EXPECT_EQ(fold_run<T>(fold, nullptr, 0, T(0)), fold_identity(fold));
    for (std::int64_t n : {1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 64, 67, 1023, 1025, 2100}) {
      if (fold == Fold::product && n > 33) continue;
      auto x = numbers<T>(n, 1);
      T shift = fold == Fold::sum_exp ? T(4) : T(0.5);
      double want = plain_fold(fold, x.get(), n, 1, static_cast<double>(shift));
      EXPECT_NEAR(fold_run(fold, x.get(), n, shift), want,
                  this->kTolerance * (1 + std::abs(want)) * std::sqrt(double(n + 1)))
          << int(fold) << " of " << n;
    }
  }
}

TYPED_TEST(Kernels, ColumnsOfEveryWidth) {
  using T = TypeParam;
  for (Fold fold : kFolds) {
    for (std::int64_t width : {1, 3, 4, 8, 9, 17, 40, 255, 256, 259}) {
      for (std::int64_t rows : {1, 2, 5, 64, 66}) {
        if (fold == Fold::product && rows > 5) continue;
        auto x = numbers<T>(rows * width, 2);
        auto shift = numbers<T>(width, 3);
        for (std::int64_t c = 0; c < width; ++c) shift[static_cast<std::size_t>(c)] += T(5);
        std::vector<double> acc(static_cast<std::size_t>(width), fold_identity(fold));
        fold_columns(fold, x.get(), width, rows, width, shift.get(), acc.data());
        for (std::int64_t c = 0; c < width; ++c) {
          auto i = static_cast<std::size_t>(c);
          double want = plain_fold(fold, x.get() + c, rows, width, static_cast<double>(shift[i]));
          ASSERT_NEAR(acc[i], want, this->kTolerance * (1 + std::abs(want)) * 8)
              << int(fold) << " " << rows << "x" << width;
        }
      }
    }
  }
}

TYPED_TEST(Kernels, AnyAxes) {
  using T = TypeParam;
  const Dims dims{3, 4, 5, 6};
  auto x = numbers<T>(element_count(dims), 4);
  for (unsigned mask = 0; mask < 16; ++mask) {
    std::vector<bool> reduced;
    for (unsigned k = 0; k < 4; ++k) reduced.push_back((mask >> k & 1U) != 0);
    Reduction plan = plan_reduction(dims, reduced, Fold::sum, Finish::none);
    std::vector<double> want(static_cast<std::size_t>(plan.outputs), 0);
    for (std::int64_t i = 0; i < element_count(dims); ++i) {
      const std::int64_t index[] = {i / 120, i / 30 % 4, i / 6 % 5, i % 6};
      std::size_t out = 0;
      for (std::size_t k = 0; k < 4; ++k) {
        if (!reduced[k]) out = out * static_cast<std::size_t>(dims[k]) + static_cast<std::size_t>(index[k]);
      }
      want[out] += static_cast<double>(x[static_cast<std::size_t>(i)]);
    }
    std::vector<T> y(want.size());
    std::vector<std::byte> scratch(plan.scratch_bytes());
    reduce(plan, this->kType, x.get(), nullptr, y.data(), scratch.data());
    for (std::size_t i = 0; i < y.size(); ++i)
      ASSERT_NEAR(static_cast<double>(y[i]), want[i], this->kTolerance * 100) << mask;
  }
}

TYPED_TEST(Kernels, SoftmaxOfRowsAndColumns) {
  using T = TypeParam;
  for (std::int64_t n : {1, 2, 7, 8, 9, 33, 130}) {
    for (std::int64_t inner : {1, 2, 8, 9, 65, 130}) {
      for (bool log : {false, true}) {
        const std::int64_t outer = 3;
        auto x = numbers<T>(outer * n * inner, 5);
        auto y = numbers<T>(outer * n * inner, 6);
        softmax(x.get(), y.get(), outer, n, inner, log);
        for (std::int64_t i = 0; i < outer * inner; ++i) {
          const T* from = x.get() + i / inner * n * inner + i % inner;
          double lse = std::log(plain_fold(Fold::sum_exp, from, n, inner, 0));
          for (std::int64_t k = 0; k < n; ++k) {
            double want = static_cast<double>(from[k * inner]) - lse;
            auto got = static_cast<double>(y[static_cast<std::size_t>(from - x.get() + k * inner)]);
            ASSERT_NEAR(got, log ? want : std::exp(want), this->kTolerance) << n << " x " << inner;
          }
        }
      }
    }
  }
}

TYPED_TEST(Kernels, ExponentialOfLargeNegatives) {
  using T = TypeParam;
  const T x[] = {T(0), T(-50), T(-86.5), T(-88), T(-1e5), -std::numeric_limits<T>::infinity()};
  T y[6];
  softmax_rows(x, y, 1, 6, false);
  for (int i = 0; i < 6; ++i) {
    double want = std::exp(static_cast<double>(x[i]));
    EXPECT_NEAR(static_cast<double>(y[i]), want, want * 1e-6 + (sizeof(T) == 4 ? 1.2e-38 : 0)) << i;
  }
  EXPECT_EQ(y[4], T(0));
  EXPECT_EQ(y[5], T(0));
}

TYPED_TEST(Kernels, NormalisedRows) {
  using T = TypeParam;
  for (std::int64_t n : {1, 3, 8, 13, 64, 1030}) {
    auto x = numbers<T>(2 * n, 7);
    auto y = numbers<T>(2 * n, 8);
    T mean[2], inverse[2];
    RowNorm<T> norm;
    norm.n = n;
    norm.epsilon = 1e-5;
    normalize_rows(norm, x.get(), y.get(), 2, mean, inverse);
    for (std::int64_t r = 0; r < 2; ++r) {
      double m = plain_fold(Fold::sum, x.get() + r * n, n, 1, 0) / double(n);
      double v = plain_fold(Fold::sum_square, x.get() + r * n, n, 1, m) / double(n);
      EXPECT_NEAR(double(mean[r]), m, this->kTolerance);
      for (std::int64_t i = 0; i < n; ++i) {
        auto at = static_cast<std::size_t>(r * n + i);
        ASSERT_NEAR(double(y[at]), (double(x[at]) - m) / std::sqrt(v + 1e-5), this->kTolerance * 10) << n;
      }
    }
  }
}

}  // namespace
}  // namespace backpass
