#include "kernels/gemm.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "support/parallel.hpp"

namespace backpass {
namespace {

template <class T>
std::vector<T> random_values(std::int64_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<T> values(static_cast<std::size_t>(count));
  for (T& v : values) v = static_cast<T>(uniform(generator));
  return values;
}

struct Problem {
  bool trans_a, trans_b;
  std::int64_t m, n, k, extra;  ///< extra: elements between the end of a row and the next
  std::int64_t lda() const { return (trans_a ? m : k) + extra + 1; }
  std::int64_t ldb() const { return (trans_b ? k : n) + extra + 1; }
  std::int64_t ldc() const { return n + extra + 1; }
};

std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      for (auto [m, n, k] : {std::tuple{1, 1, 1},
                             {1, 40, 33},
                             {5, 7, 3},
                             {6, 16, 8},
                             {17, 33, 300},
                             {97, 50, 513},
                             {130, 200, 64},
                             {3, 600, 20},
                             {20, 61, 9001},
                             {16, 1300, 450},
                             {700, 37, 450},  // too many rows to keep all of A near
                             {64, 112, 40},   // a panel and a vector at the end of three panels
                             {64, 785, 17},
                             {24, 96, 1},
                             {200, 8, 530},  // few columns
                             {129, 1, 64},
                             {150, 16, 7},
                             {130, 5, 0},
                             {33, 5, 0}}) {
        all.push_back({ta, tb, m, n, k, (m + n) % 3});
      }
    }
  }
  return all;
}

template <class T>
struct Operands {
  std::vector<T> a, b, c, bias;
  explicit Operands(const Problem& p)
      : a(random_values<T>((p.trans_a ? p.k : p.m) * p.lda(), 1)),
        b(random_values<T>((p.trans_b ? p.n : p.k) * p.ldb(), 2)),
        c(random_values<T>(p.m * p.ldc(), 3)),
        bias(random_values<T>(p.n, 4)) {}

  double expected(const Problem& p, std::int64_t i, std::int64_t j, double alpha, double beta) const {
    double sum = 0;
    for (std::int64_t x = 0; x < p.k; ++x) {
      double left = a[static_cast<std::size_t>(p.trans_a ? x * p.lda() + i : i * p.lda() + x)];
      double right = b[static_cast<std::size_t>(p.trans_b ? j * p.ldb() + x : x * p.ldb() + j)];
      sum += left * right;
    }
    return alpha * sum + beta * c[static_cast<std::size_t>(i * p.ldc() + j)];
  }
};

template <class T>
void check(const Problem& p, double alpha, double beta, bool biased) {
  Operands<T> o(p);
  std::vector<T> c = o.c;
  Epilogue<T> epilogue;
  if (biased) epilogue.bias = o.bias.data();
  epilogue.relu = biased;
  gemm<T>(p.trans_a, p.trans_b, p.m, p.n, p.k, static_cast<T>(alpha), o.a.data(), p.lda(), o.b.data(), p.ldb(),
          static_cast<T>(beta), c.data(), p.ldc(), epilogue);
  double tolerance = (sizeof(T) == 4 ? 1e-6 : 1e-14) * static_cast<double>(p.k + 4);
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < p.ldc(); ++j) {
      auto at = static_cast<std::size_t>(i * p.ldc() + j);
      if (j >= p.n) {
        ASSERT_EQ(c[at], o.c[at]) << "wrote beyond the row";
        continue;
      }
      double want = o.expected(p, i, j, alpha, beta);
      if (biased) want = std::max(0.0, want + o.bias[static_cast<std::size_t>(j)]);
      ASSERT_NEAR(c[at], want, tolerance) << p.m << "x" << p.n << "x" << p.k << " at " << i << "," << j;
    }
  }
}

TEST(Gemm, EqualsTheDefinition) {
  for (const Problem& p : problems()) {
    check<float>(p, 1, 0, false);
    check<float>(p, 0.5, 2, true);
    check<double>(p, 1, 0, false);
    check<double>(p, -0.5, 1, true);
  }
}

TEST(Gemm, DoesNotReadCWhenBetaIsZero) {
  std::vector<float> a(40 * 20, 1.0F);
  std::vector<float> b(20 * 30, 1.0F);
  for (std::int64_t m : {2, 40}) {
    std::vector<float> c(static_cast<std::size_t>(m * 30), NAN);
    gemm<float>(false, false, m, 30, 20, 1, a.data(), 20, b.data(), 30, 0, c.data(), 30);
    for (float v : c) ASSERT_EQ(v, 20.0F);
  }
}

template <class T>
void expect_tiny_taken_for_zero() {
  const int below = std::numeric_limits<T>::min_exponent - 5;
  for (const Problem& p : problems()) {
    Operands<T> o(p);
    for (T& x : o.a) x = std::ldexp(x, below);
    for (T& x : o.b) x = std::ldexp(x, 20);
    gemm<T>(p.trans_a, p.trans_b, p.m, p.n, p.k, 1, o.a.data(), p.lda(), o.b.data(), p.ldb(), 0, o.c.data(), p.ldc());
    for (std::int64_t i = 0; i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) ASSERT_EQ(o.c[static_cast<std::size_t>(i * p.ldc() + j)], T(0));
  }
  volatile T half = std::numeric_limits<T>::min();
  half = half / 2;
  EXPECT_NE(half, T(0)) << "a product must leave the arithmetic of others alone";
}

// Products of numbers without a normal exponent would take 150 cycles each on some processors.
TEST(Gemm, TakesTinyNumbersForZero) {
  expect_tiny_taken_for_zero<float>();
  expect_tiny_taken_for_zero<double>();
}

TEST(Gemm, OfFactorZeroLeavesTheRest) {
  for (const Problem& p : {Problem{false, false, 3, 50, 20, 0}, Problem{true, false, 1, 9, 4, 0},
                           Problem{false, true, 40, 50, 20, 0}, Problem{true, true, 130, 8, 64, 0}}) {
    check<float>(p, 0, 0, false);
    check<float>(p, 0, 2, true);
    check<double>(p, 0, 0.5, true);
  }
}

TEST(Gemm, PackedEqualsUnpacked) {
  for (const Problem& p : problems()) {
    Operands<float> o(p);
    PackedMatrix<float> packed(p.trans_b, p.k, p.n, o.b.data(), p.ldb());
    std::vector<float> c = o.c;
    packed.multiply(p.trans_a, p.m, 1, o.a.data(), p.lda(), 1, c.data(), p.ldc());
    for (std::int64_t i = 0; i < p.m; ++i) {
      for (std::int64_t j = 0; j < p.n; ++j) {
        ASSERT_NEAR(c[static_cast<std::size_t>(i * p.ldc() + j)], o.expected(p, i, j, 1, 1), 1e-3);
      }
    }
  }
}

template <class T>
void check_near(const Problem& p, T beta, std::int64_t rows_behind) {
  Operands<T> o(p);
  std::vector<T> near = o.c;
  std::vector<T> usual = o.c;
  gemm_near<T>(p.m, p.n, p.k, o.a.data(), p.lda(), o.b.data(), p.ldb(), beta, near.data(), p.ldc(), rows_behind);
  gemm<T>(true, false, p.m, p.n, p.k, 1, o.a.data(), p.lda(), o.b.data(), p.ldb(), beta, usual.data(), p.ldc());
  for (std::size_t i = 0; i < near.size(); ++i) {
    ASSERT_NEAR(near[i], usual[i], (sizeof(T) == 4 ? 1e-6 : 1e-14) * static_cast<double>(p.k + 4))
        << p.m << "x" << p.n << "x" << p.k << " at " << i;
  }
}

TEST(Gemm, OfANearMatrixEqualsTheUsualOne) {
  for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {17, 48, 30}, {350, 200, 160}, {33, 47, 5}, {64, 113, 160}}) {
    check_near<float>({true, false, m, n, k, 2}, 0, 0);
    check_near<float>({true, false, m, n, k, -1}, 1, 3);  // rows of B lie together
    check_near<double>({true, false, m, n, k, 0}, 1, 1000);
  }
}

TEST(Gemm, TheSameBitsForAnyNumberOfThreads) {
  for (const Problem& p : {Problem{false, false, 200, 300, 700, 0}, Problem{true, true, 3, 3000, 900, 0},
                           Problem{true, false, 300, 200, 9000, 0}, Problem{false, false, 64, 785, 130, 0},
                           Problem{false, true, 64, 200, 130, 0}, Problem{true, false, 900, 60, 400, 0},
                           Problem{true, false, 900, 8, 700, 0}, Problem{false, true, 64, 200, 130, -1},
                           Problem{true, true, 20, 97, 500, -1}, Problem{true, false, 120, 512, 1100, 0},
                           Problem{false, false, 512, 100, 9000, 0}}) {
    Operands<float> o(p);
    std::vector<std::vector<float>> results;
    for (int threads : {1, 2, 3}) {
      ThreadScope scope(threads);
      std::vector<float> c = o.c;
      gemm<float>(p.trans_a, p.trans_b, p.m, p.n, p.k, 1, o.a.data(), p.lda(), o.b.data(), p.ldb(), 0, c.data(),
                  p.ldc());
      results.push_back(c);
    }
    EXPECT_EQ(results[0], results[1]);
    EXPECT_EQ(results[0], results[2]);
  }
}

/// Products of few rows pack B where they use it, others ahead; neither may change a bit of a sum.
void expect_same_bits_for_few_rows(const Problem& p) {
  const Operands<float> o(p);
  std::vector<float> all = o.c;
  std::vector<float> few = o.c;
  auto run = [&](std::int64_t i0, std::int64_t rows, std::vector<float>& c) {
    gemm<float>(p.trans_a, p.trans_b, rows, p.n, p.k, 0.5F, o.a.data() + (p.trans_a ? i0 : i0 * p.lda()), p.lda(),
                o.b.data(), p.ldb(), 2, c.data() + i0 * p.ldc(), p.ldc(), {.bias = o.bias.data(), .relu = true});
  };
  run(0, p.m, all);
  for (std::int64_t i = 0; i < p.m; i += 80) run(i, 80, few);
  EXPECT_EQ(all, few) << p.m << "x" << p.n << "x" << p.k;
}

TEST(Gemm, TheSameBitsForAnyNumberOfRows) {
  for (bool ta : {false, true}) {
    for (bool tb : {false, true}) {
      expect_same_bits_for_few_rows({ta, tb, 720, 131, 4500, 1});  // packed in parts of k
      expect_same_bits_for_few_rows({ta, tb, 720, 1400, 450, 0});  // in parts of columns
    }
  }
}

/// Columns at the right border are computed in vectors of another length than those of whole panels.
TEST(Gemm, TheSameBitsForAnyNumberOfColumns) {
  for (bool ta : {false, true}) {
    for (std::int64_t k : {1, 33, 600}) {
      const Problem p{ta, false, 40, 150, k, 0};
      const Operands<float> o(p);
      auto run = [&](std::int64_t n) {
        std::vector<float> c(static_cast<std::size_t>(p.m * p.n), -7);
        gemm<float>(ta, false, p.m, n, k, 1, o.a.data(), p.lda(), o.b.data(), p.ldb(), 0, c.data(), p.n,
                    {.bias = o.bias.data()});
        return c;
      };
      const std::vector<float> all = run(p.n);
      for (std::int64_t n = 1; n < p.n; ++n) {
        const std::vector<float> some = run(n);
        for (std::int64_t at = 0; at < p.m * p.n; ++at) {
          const auto i = static_cast<std::size_t>(at);
          ASSERT_EQ(some[i], at % p.n < n ? all[i] : -7) << n << " columns, k " << k << ", at " << at;
        }
      }
    }
  }
}

TEST(Gemm, BatchesAdvanceByTheirStrides) {
  GemmBatch g;
  g.m = 3;
  g.n = 5;
  g.k = 4;
  g.lda = 4;
  g.ldb = 5;
  g.ldc = 5;
  g.batch = {2, 3};
  g.stride_a = {12, 0};
  g.stride_b = {0, 20};
  g.stride_c = {45, 15};
  auto a = random_values<double>(24, 1);
  auto b = random_values<double>(60, 2);
  std::vector<double> c(90);
  batched_gemm<double>(g, 1.0, a.data(), b.data(), c.data());
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t j = 0; j < 3; ++j) {
      double sum = 0;
      for (std::size_t x = 0; x < 4; ++x) sum += a[12 * i + 4 * 2 + x] * b[20 * j + 5 * x + 1];
      EXPECT_NEAR(c[45 * i + 15 * j + 5 * 2 + 1], sum, 1e-12);
    }
  }
}

TEST(Gemm, IntegersWrapAround) {
  std::vector<std::uint32_t> a{0xffffffffU, 2};
  std::vector<std::uint32_t> b{3, 5};
  std::uint32_t c = 1;
  integer_gemm<std::uint32_t>(false, false, 1, 1, 2, a.data(), 2, b.data(), 1, &c, 1);
  EXPECT_EQ(c, 7U);  // -3 + 10
}

TEST(UnaryTile, EqualsTheDefinition) {
  auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  for (double v : {-40.0, -3.0, -0.5, 0.0, 0.25, 1.0, 3.5, 40.0}) {
    auto run = [&](std::string_view name) {
      auto f = static_cast<float>(v);
      UnaryTile{find_tile_function(name), {0.25, 0.5}}.bind(DType::float32)(&f, 1);
      return f;
    };
    EXPECT_NEAR(run("Relu"), std::max(0.0, v), 1e-6);
    EXPECT_NEAR(run("LeakyRelu"), v < 0 ? 0.25 * v : v, 1e-6);
    EXPECT_NEAR(run("Clip"), std::clamp(v, 0.25, 0.5), 1e-6);
    EXPECT_NEAR(run("HardSigmoid"), std::clamp(0.25 * v + 0.5, 0.0, 1.0), 1e-6);
    EXPECT_NEAR(run("HardSwish"), v * std::clamp(0.25 * v + 0.5, 0.0, 1.0), 1e-5);
    EXPECT_NEAR(run("Sigmoid"), sigmoid(v), 1e-6);
    EXPECT_NEAR(run("Tanh"), std::tanh(v), 1e-6);
    EXPECT_NEAR(run("Swish"), v * sigmoid(0.25 * v), 1e-5);
    EXPECT_NEAR(run("Gelu"), 0.5 * v * (1 + std::erf(v / std::sqrt(2.0))), 1e-5);
    double inner = std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v);
    EXPECT_NEAR(run("FastGelu"), 0.5 * v * (1 + std::tanh(inner)), 1e-5);
  }
}

}  // namespace
}  // namespace backpass
