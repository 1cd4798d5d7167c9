// The SIMD loops of training against plain loops, at every length around a vector, on every instruction set this
// machine has.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "kernel_testing.hpp"
#include "ops/attention/attention_rows.hpp"
#include "ops/normalization/normalize_grad.hpp"
#include "ops/normalization/softmax_grad_kernel.hpp"
#include "ops/optimizers/optimizer.hpp"
#include "support/philox.hpp"

namespace backpass {
namespace {

template <class T>
class TrainingKernels : public testing::Test {
 protected:
  static constexpr double kTolerance = sizeof(T) == 4 ? 2e-5 : 1e-12;
};
using Reals = testing::Types<float, double>;
TYPED_TEST_SUITE(TrainingKernels, Reals);

constexpr std::int64_t kSizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 67, 1030};

TYPED_TEST(TrainingKernels, RowNormGradient) {
  using T = TypeParam;
  constexpr std::int64_t kRows = 6;  // a group of four and two single ones
  for (std::int64_t n : kSizes) {
    auto dy = numbers<T>(kRows * n, 1), x = numbers<T>(kRows * n, 2), scale = numbers<T>(n, 3);
    auto mean = numbers<T>(kRows, 4), inverse = numbers<T>(kRows, 5);
    std::vector<double> dx(static_cast<std::size_t>(kRows * n)), dscale(static_cast<std::size_t>(n));
    std::vector<double> dbias(dscale.size());
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto size = static_cast<std::size_t>(n);
      double g_mean = 0, gz_mean = 0;
      auto z = [&](std::size_t i) { return (double{x[r * size + i]} - double{mean[r]}) * double{inverse[r]}; };
      auto g = [&](std::size_t i) { return double{dy[r * size + i]} * double{scale[i]}; };
      for (std::size_t i = 0; i < size; ++i) g_mean += g(i) / double(n), gz_mean += g(i) * z(i) / double(n);
      for (std::size_t i = 0; i < size; ++i) {
        dx[r * size + i] = (g(i) - g_mean - z(i) * gz_mean) * double{inverse[r]};
        dscale[i] += double{dy[r * size + i]} * z(i);
        dbias[i] += double{dy[r * size + i]};
      }
    }
    on_every_target([&] {
      auto got = numbers<T>(kRows * n, 9), got_scale = numbers<T>(n, 9), got_bias = numbers<T>(n, 9);
      row_norm_grad(RowNormGrad<T>{RowNormForm::centered, n, scale.get()}, kRows, dy.get(), x.get(), mean.get(),
                    inverse.get(), got.get(), got_scale.get(), got_bias.get());
      for (std::size_t i = 0; i < dx.size(); ++i) ASSERT_NEAR(got[i], dx[i], this->kTolerance * 10) << n;
      for (std::size_t i = 0; i < dscale.size(); ++i) ASSERT_NEAR(got_scale[i], dscale[i], this->kTolerance * 10);
      for (std::size_t i = 0; i < dbias.size(); ++i) ASSERT_NEAR(got_bias[i], dbias[i], this->kTolerance);
    });
  }
}

TYPED_TEST(TrainingKernels, RunsOfBatchNormGradient) {
  using T = TypeParam;
  for (std::int64_t n : kSizes) {
    auto dy = numbers<T>(n, 1), x = numbers<T>(n, 2);
    on_every_target([&] {
      const GradientSums sums = gradient_sums(dy.get(), x.get(), n, T(0.5));
      double plain = 0, with_x = 0;
      auto dx = numbers<T>(n, 3);
      gradient_run(dy.get(), x.get(), dx.get(), n, T(0.5), T(2), T(0.25), T(1));
      for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
        plain += double{dy[i]};
        with_x += double{dy[i]} * (double{x[i]} - 0.5);
        ASSERT_NEAR(dx[i], 2 * double{dy[i]} - (double{x[i]} - 0.5) * 0.25 - 1, this->kTolerance);
      }
      EXPECT_NEAR(sums.plain, plain, this->kTolerance * 10);
      EXPECT_NEAR(sums.with_x, with_x, this->kTolerance * 10);
    });
  }
}

TYPED_TEST(TrainingKernels, SoftmaxGradientOfRowsAndColumns) {
  using T = TypeParam;
  for (std::int64_t n : kSizes) {
    for (std::int64_t inner : {std::int64_t{1}, std::int64_t{3}, std::int64_t{70}}) {
      if (n * inner > 8000) continue;
      auto dy = numbers<T>(2 * n * inner, 1), y = numbers<T>(2 * n * inner, 2);
      on_every_target([&] {
        auto dx = numbers<T>(2 * n * inner, 3);
        softmax_grad(dy.get(), y.get(), dx.get(), 2, n, inner, false);
        for (std::int64_t o = 0; o < 2 * inner; ++o) {
          auto at = [&](std::int64_t i) { return static_cast<std::size_t>((o / inner * n + i) * inner + o % inner); };
          double sum = 0;
          for (std::int64_t i = 0; i < n; ++i) sum += double{dy[at(i)]} * double{y[at(i)]};
          for (std::int64_t i = 0; i < n; ++i) {
            const double want = double{y[at(i)]} * (double{dy[at(i)]} - sum);
            ASSERT_NEAR(dx[at(i)], want, this->kTolerance * 20) << "n " << n << ", inner " << inner;
          }
        }
      });
    }
  }
}

TYPED_TEST(TrainingKernels, RowsOfAttention) {
  using T = TypeParam;
  constexpr T kNone = -std::numeric_limits<T>::infinity();
  for (std::int64_t n : kSizes) {
    const auto size = static_cast<std::size_t>(n);
    auto weights = numbers<T>(n, 1), slope = numbers<T>(n, 2), added = numbers<T>(n, 3);
    std::unique_ptr<bool[]> chosen(new bool[size]);
    for (std::size_t i = 0; i < size; ++i) {
      chosen[i] = i % 3 != 1;
      if (i % 4 == 2) added[i] = kNone;
    }
    on_every_target([&] {
      auto scores = numbers<T>(n, 4), masked = numbers<T>(n, 4), got = numbers<T>(n, 2);
      scores[size - 1] = masked[size - 1] = std::numeric_limits<T>::infinity();
      add_mask(masked.get(), added.get(), n);
      choose_scores(scores.get(), chosen.get(), n);
      score_gradient(weights.get(), T(0.5), got.get(), n);
      double sum = 0;
      for (std::size_t i = 0; i < size; ++i) sum += 0.5 * double{weights[i]} * double{slope[i]};
      auto original = numbers<T>(n, 4);
      original[size - 1] = std::numeric_limits<T>::infinity();
      for (std::size_t i = 0; i < size; ++i) {
        ASSERT_EQ(masked[i], added[i] == kNone ? kNone : original[i] + added[i]);
        ASSERT_EQ(scores[i], chosen[i] ? original[i] : kNone);
        ASSERT_NEAR(got[i], 0.5 * double{weights[i]} * (double{slope[i]} - sum), this->kTolerance * 20);
      }
    });
  }
}

TYPED_TEST(TrainingKernels, OptimizerSteps) {
  using T = TypeParam;
  WeightSettings settings;
  settings.weight_decay = 0.1;
  const StepFactors factors = adam_factors(settings, 0.001, 3);
  for (std::int64_t n : kSizes) {
    auto g = numbers<T>(n, 1);
    on_every_target([&] {
      auto w = numbers<T>(n, 2), m = numbers<T>(n, 3), v = numbers<T>(n, 4), plain = numbers<T>(n, 2);
      const auto size = static_cast<std::size_t>(n);
      for (std::size_t i = 0; i < size; ++i) v[i] = std::abs(v[i]);
      auto w0 = numbers<T>(n, 2), m0 = numbers<T>(n, 3), v0 = numbers<T>(n, 4);
      adam_step<T>(factors, {w.get(), g.get(), m.get(), v.get(), w.get(), m.get(), v.get()}, n);
      sgd_step<T>(sgd_factors({}, 0.5), sgd_tensors<T>(plain.get(), g.get(), plain.get()), n);
      for (std::size_t i = 0; i < size; ++i) {
        const double first = 0.9 * double{m0[i]} + 0.1 * double{g[i]};
        const double second = 0.999 * std::abs(double{v0[i]}) + 0.001 * double{g[i]} * double{g[i]};
        const double root = std::sqrt(second / (1 - std::pow(0.999, 3))) + 1e-8;
        const double want = double{w0[i]} * (1 - 1e-4) - 0.001 * first / (1 - std::pow(0.9, 3)) / root;
        ASSERT_NEAR(m[i], first, this->kTolerance);
        ASSERT_NEAR(v[i], second, this->kTolerance);
        ASSERT_NEAR(w[i], want, this->kTolerance);
        ASSERT_NEAR(plain[i], double{w0[i]} - 0.5 * double{g[i]}, this->kTolerance);
      }
    });
  }
}

}  // namespace
}  // namespace backpass
