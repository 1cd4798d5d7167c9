// The loops of the usual recurrent cells, against double precision.
#include "kernels/cell_rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace backpass {
namespace {

constexpr std::int64_t kSize = 37;  // whole vectors and a part of one, whatever their length
constexpr double kRounding = 0x1p-24;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// Gates of all sizes, of both signs: from 1e-6 to beyond where the functions are constant.
std::vector<float> spread_values(std::int64_t count, double phase) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    const double size = std::pow(10.0, -6 + 7.5 * std::abs(std::sin(0.37 * static_cast<double>(i) + phase)));
    values.push_back(static_cast<float>(i % 2 == 0 ? size : -size));
  }
  return values;
}

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

TEST(CellRows, LstmIsExactToFewRoundings) {
  for (double phase = 0; phase < 3; phase += 0.01) {
    const std::vector<float> gates = spread_values(4 * kSize, phase);
    const std::vector<float> before = spread_values(kSize, phase + 1);
    std::vector<float> cell = before, hidden(kSize), activated(4 * kSize);
    lstm_row(gates.data(), cell.data(), hidden.data(), kSize, {.gates = activated.data()});
    for (std::int64_t k = 0; k < kSize; ++k) {
      const double i = sigmoid(gates[at(k)]), o = sigmoid(gates[at(kSize + k)]), f = sigmoid(gates[at(2 * kSize + k)]);
      const double g = std::tanh(static_cast<double>(gates[at(3 * kSize + k)]));
      EXPECT_NEAR(activated[at(k)], i, 5 * kRounding * i);
      EXPECT_NEAR(activated[at(kSize + k)], o, 5 * kRounding * o);
      EXPECT_NEAR(activated[at(2 * kSize + k)], f, 5 * kRounding * f);
      EXPECT_NEAR(activated[at(3 * kSize + k)], g, 4 * kRounding * std::abs(g));
      const double kept = f * before[at(k)];
      EXPECT_NEAR(cell[at(k)], kept + i * g, 6 * kRounding * (std::abs(kept) + std::abs(i * g)));
      const double h = o * std::tanh(static_cast<double>(cell[at(k)]));
      EXPECT_NEAR(hidden[at(k)], h, 6 * kRounding * std::abs(h));
    }
  }
}

TEST(CellRows, GruIsExactToFewRoundings) {
  for (double phase = 0; phase < 3; phase += 0.01) {
    const std::vector<float> gates = spread_values(3 * kSize, phase);
    const std::vector<float> recurrent(3 * kSize, 0.0F);
    const std::vector<float> before = spread_values(kSize, phase + 1);
    std::vector<float> hidden = before, activated(3 * kSize);
    gru_row(gates.data(), recurrent.data(), hidden.data(), kSize, {.gates = activated.data()});
    for (std::int64_t k = 0; k < kSize; ++k) {
      const double z = sigmoid(gates[at(k)]), r = sigmoid(gates[at(kSize + k)]);
      const double g = std::tanh(static_cast<double>(gates[at(2 * kSize + k)]));
      EXPECT_NEAR(activated[at(k)], z, 5 * kRounding * z);
      EXPECT_NEAR(activated[at(kSize + k)], r, 5 * kRounding * r);
      EXPECT_NEAR(activated[at(2 * kSize + k)], g, 4 * kRounding * std::abs(g));
      const double h = g + z * (before[at(k)] - g);
      EXPECT_NEAR(hidden[at(k)], h, 8 * kRounding * (std::abs(g) + std::abs(before[at(k)])));
    }
  }
}

TEST(CellRows, CopiesChangeNoBit) {
  const std::vector<float> gates = spread_values(4 * kSize, 0.5);
  std::vector<float> cell = spread_values(kSize, 1.5), hidden(kSize);
  std::vector<float> kept_cell = cell, kept_hidden(kSize), copied_cell(kSize), copied_hidden(kSize);
  std::vector<float> activated = gates;
  lstm_row(gates.data(), cell.data(), hidden.data(), kSize, {});
  lstm_row(activated.data(), kept_cell.data(), kept_hidden.data(), kSize,
           {.gates = activated.data(), .cell = copied_cell.data(), .hidden = copied_hidden.data()});
  EXPECT_EQ(cell, kept_cell);
  EXPECT_EQ(cell, copied_cell);
  EXPECT_EQ(hidden, kept_hidden);
  EXPECT_EQ(hidden, copied_hidden);
  EXPECT_NE(activated, gates);
}

TEST(CellRows, ExtremesAndNaN) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float sign : {1.0F, -1.0F}) {
    std::vector<float> gates(4 * kSize, infinity), cell(kSize, 0.0F), hidden(kSize);
    std::fill(gates.begin() + 3 * kSize, gates.end(), sign * infinity);
    lstm_row(gates.data(), cell.data(), hidden.data(), kSize, {});
    for (std::int64_t k = 0; k < kSize; ++k) {
      EXPECT_EQ(cell[at(k)], sign);
      EXPECT_NEAR(hidden[at(k)], sign * std::tanh(1.0), 6 * kRounding);
    }
  }
  std::vector<float> closed(4 * kSize, -infinity), cell(kSize, 3.0F), hidden(kSize);
  lstm_row(closed.data(), cell.data(), hidden.data(), kSize, {});
  for (std::int64_t k = 0; k < kSize; ++k) EXPECT_NEAR(cell[at(k)], 0, 1e-37);
  for (std::int64_t gate = 0; gate < 4; ++gate) {
    std::vector<float> gates(4 * kSize, 1.0F), state(kSize, 1.0F);
    gates[at(gate * kSize + 20)] = std::numeric_limits<float>::quiet_NaN();
    lstm_row(gates.data(), state.data(), hidden.data(), kSize, {});
    for (std::int64_t k = 0; k < kSize; ++k) EXPECT_EQ(std::isnan(hidden[at(k)]), k == 20) << gate << " " << k;
  }
}

}  // namespace
}  // namespace backpass
