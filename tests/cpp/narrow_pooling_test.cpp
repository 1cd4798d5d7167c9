// Places in windows give the bits that indices give.
#include <gtest/gtest.h>

#include <cstring>

#include "gradient/reverse.hpp"
#include "pass_testing.hpp"
#include "plan/lower.hpp"

namespace backpass {
namespace {

/// A pooling with its gradient, of random geometry or halving the image; NaN and equal elements among the inputs.
void add_pooling(PassFixture& f, DType dtype, bool is_halving) {
  auto pick = [&](std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(f.generator);
  };
  const std::int64_t most = is_halving ? 1 : 2;
  const std::int64_t kernel[] = {is_halving ? 2 : pick(1, 4), is_halving ? 2 : pick(1, 5)};
  const std::int64_t stride[] = {is_halving ? 2 : pick(1, 3), is_halving ? 2 : pick(1, 3)};
  const std::int64_t dilation[] = {pick(1, most), pick(1, most)};
  const auto padding = [&](std::int64_t extent) { return is_halving ? 0 : pick(0, extent - 1); };
  const std::int64_t before[] = {padding(kernel[0]), padding(kernel[1])};
  const std::int64_t height = pick(8, 17), width = pick(9, 75);  // several vectors, and what is left of one
  Value* x = f.input({pick(1, 3), pick(1, 3), height, width}, dtype, {"n"});
  Tensor& fed = f.feeds.back().tensor;
  for (std::int64_t i = 0; i < fed.size(); i += pick(1, 7)) {
    const double value = pick(0, 9) == 0 ? std::nan("") : static_cast<double>(pick(-2, 2));
    if (dtype == DType::float32) {
      fed.as<float>()[i] = static_cast<float>(value);
    } else {
      fed.as<double>()[i] = value;
    }
  }
  Value* y = f.b.op("MaxPool", {x},
                    {{"kernel_shape", std::vector<std::int64_t>{kernel[0], kernel[1]}},
                     {"strides", std::vector<std::int64_t>{stride[0], stride[1]}},
                     {"dilations", std::vector<std::int64_t>{dilation[0], dilation[1]}},
                     {"pads", std::vector<std::int64_t>{before[0], before[1], padding(kernel[0]), 0}},
                     {"ceil_mode", pick(0, 1)}});
  Value* seed = f.b.op("Sin", {y});
  f.output(y);
  const std::vector<Value*> outputs{y}, seeds{seed}, wrt{x};
  for (Value* gradient : add_gradients(f.graph, outputs, seeds, wrt)) f.output(gradient);
}

TEST(NarrowPooling, SameBitsAsIndices) {
  int narrowed = 0;
  for (int seed = 0; seed < 60; ++seed) {
    PassFixture f;
    f.generator.seed(static_cast<unsigned>(seed));
    add_pooling(f, seed % 3 == 0 ? DType::float64 : DType::float32, seed % 4 == 1);
    const std::vector<Tensor> before = f.run_planned();
    narrow_pooling(f.graph, f.reports);
    ASSERT_TRUE(verify(f.graph).empty()) << verify(f.graph).front();
    narrowed += static_cast<int>(f.reports.size());
    const std::vector<Tensor> after = f.run_planned();
    for (std::size_t k = 0; k < before.size(); ++k) {
      ASSERT_EQ(before[k].dims(), after[k].dims());
      EXPECT_EQ(std::memcmp(before[k].data(), after[k].data(), before[k].bytes()), 0) << "output " << k << ", " << seed;
    }
  }
  EXPECT_EQ(narrowed, 60);
}

}  // namespace
}  // namespace backpass
