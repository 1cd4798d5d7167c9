#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/blocked.hpp"
#include "kernels/conv.hpp"
#include "ops/convolution/blocked_conv_kernel.hpp"
#include "ops/convolution/conv_tiles.hpp"
#include "ops/convolution/dnnl_conv.hpp"

namespace backpass {
namespace {

class BlockedConvTest : public ::testing::Test {
 protected:
  std::mt19937 generator{11};

  std::int64_t pick(std::vector<std::int64_t> from) { return from[generator() % from.size()]; }

  Tensor random(std::int64_t count) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    Tensor t(DType::float32, {count});
    for (std::int64_t i = 0; i < count; ++i) t.as<float>()[i] = uniform(generator);
    return t;
  }

  /// Windows of a random kind that fit into the image.
  void choose_windows(ConvGeometry& g) {
    g.batch = pick({1, 2});
    for (int axis = 0; axis < 2; ++axis) {
      std::int64_t kernel = pick({1, 1, 2, 3, 3, 5, 7});
      std::int64_t dilation = pick({1, 1, 1, 2});
      std::int64_t stride = pick({1, 1, 2, 3});
      std::int64_t before = pick({0, 1, kernel / 2, kernel - 1});
      std::int64_t after = pick({0, 1, kernel / 2});
      std::int64_t reach = dilation * (kernel - 1) + 1;
      std::int64_t in = std::max<std::int64_t>(1, reach - before - after) + pick({0, 1, 4, 9, 17});
      g.kernel.push_back(kernel);
      g.dilation.push_back(dilation);
      g.stride.push_back(stride);
      g.pad_begin.push_back(before);
      g.pad_end.push_back(after);
      g.in.push_back(in);
      g.out.push_back((in + before + after - reach) / stride + 1);
    }
  }

  static std::string text(const ConvGeometry& g) {
    return concat(g.groups, " groups ", g.in_channels, "->", g.out_channels, " image ", to_string(g.in), " kernel ",
                  to_string(g.kernel), " stride ", to_string(g.stride), " dilation ", to_string(g.dilation), " pads ",
                  to_string(g.pad_begin), to_string(g.pad_end));
  }

  /// What channels leave of the last block holds no numbers: nobody may read it.
  static Tensor blocked(const Tensor& x, std::int64_t images, std::int64_t channels, std::int64_t size) {
    const std::int64_t blocks = (channels + kBlock - 1) / kBlock;
    Tensor y(DType::float32, {images * blocks * kBlock * size});
    to_blocked(images, channels, kBlock, size, x.as<float>(), y.as<float>());
    for (std::int64_t i = 0; i < images; ++i) {
      float* last = y.as<float>() + ((i + 1) * blocks - 1) * size * kBlock;
      for (std::int64_t at = 0; at < size * kBlock; ++at) {
        if ((blocks - 1) * kBlock + at % kBlock >= channels) last[at] = NAN;
      }
    }
    return y;
  }

  void check(const ConvGeometry& g, bool blocked_in, std::string_view activation, bool in_place,
             bool may_transform = false) {
    Tensor x = random(g.batch * g.groups * g.in_channels * g.in_size());
    Tensor w = random(g.groups * g.out_channels * g.column_rows());
    Tensor bias = random(g.groups * g.out_channels);
    std::int64_t count = g.batch * g.groups * g.out_channels * g.out_size();
    Tensor residual = random(count);
    BlockedConvOptions options{kBlock, blocked_in, {find_tile_function(activation), {0.25, 0.75}}, may_transform};
    auto conv = BlockedConv::make(g, options, w);
    ASSERT_NE(conv, nullptr) << text(g);

    Tensor want(DType::float32, {count});
    convolve<float>(g, x.as<float>(), w.as<float>(), bias.as<float>(), want.as<float>());
    for (std::int64_t i = 0; i < count; ++i) want.as<float>()[i] += residual.as<float>()[i];
    if (TileCall f = options.activation.bind(DType::float32)) f(want.as<float>(), count);

    Tensor input = blocked_in ? blocked(x, g.batch, g.groups * g.in_channels, g.in_size()) : x;
    Tensor other = blocked(residual, g.batch, g.groups * g.out_channels, g.out_size());
    Tensor y = in_place ? other : Tensor(DType::float32, {count});
    Tensor scratch(DType::uint8, {static_cast<std::int64_t>(conv->scratch_bytes()) + 64});
    conv->run(input.as<float>(), bias.as<float>(), other.as<float>(), y.as<float>(), scratch.as<std::byte>());
    Tensor got(DType::float32, {count});
    from_blocked(g.batch, g.groups * g.out_channels, kBlock, g.out_size(), y.as<float>(), got.as<float>());
    for (std::int64_t i = 0; i < count; ++i) {
      ASSERT_NEAR(got.as<float>()[i], want.as<float>()[i], 1e-3) << text(g) << " at " << i;
    }
  }

  std::string_view any_activation() {
    const std::string_view all[] = {"", "", "Relu", "Clip", "HardSwish", "Sigmoid", "Gelu"};
    return all[generator() % 7];
  }

  // What conv_block() would choose, if these loops can work with it.
  static inline const std::int64_t kBlock = std::max<std::int64_t>(8, conv_tile_kernels().lanes);
};

TEST_F(BlockedConvTest, DenseAndGrouped) {
  for (int i = 0; i < 120; ++i) {
    ConvGeometry g;
    choose_windows(g);
    g.groups = pick({1, 1, 2});
    g.in_channels = kBlock * pick({1, 2, 5});
    g.out_channels = kBlock * pick({1, 2, 3, 5, 6});
    check(g, true, any_activation(), i % 2 == 0);
  }
}

TEST_F(BlockedConvTest, ChannelsThatFillNoBlock) {
  for (int i = 0; i < 80; ++i) {
    ConvGeometry g;
    choose_windows(g);
    g.in_channels = pick({1, kBlock / 2, kBlock - 1, kBlock + 1, 2 * kBlock - 3, 5 * kBlock + 5});
    g.out_channels = kBlock * pick({1, 2, 3, 5});
    check(g, true, any_activation(), i % 2 == 0);
  }
}

TEST_F(BlockedConvTest, TransformedTiles) {
  int transformed = 0;
  for (int i = 0; i < 60; ++i) {
    ConvGeometry g;
    g.batch = pick({1, 1, 2, 5});
    g.kernel = {3, 3};
    g.stride = g.dilation = {1, 1};
    g.in_channels = pick({kBlock, 2 * kBlock, 3 * kBlock + 5, 4 * kBlock - 1});
    g.out_channels = kBlock * pick({1, 2, 3, 4});
    for (std::size_t axis = 0; axis < 2; ++axis) {
      g.pad_begin.push_back(pick({0, 1, 1, 2}));
      g.pad_end.push_back(pick({0, 1, 1, 2}));
      g.in.push_back(pick({3, 4, 7, 14, 17, 33}));
      g.out.push_back(g.in[axis] + g.pad_begin[axis] + g.pad_end[axis] - 2);
    }
    check(g, true, any_activation(), i % 2 == 0, true);
    const BlockedConvOptions direct{kBlock, true, {}, false}, may{kBlock, true, {}, true};
    const Tensor w = random(g.out_channels * g.column_rows());
    if (BlockedConv::make(g, direct, w)->scratch_bytes() != BlockedConv::make(g, may, w)->scratch_bytes()) {
      ++transformed;
    }
  }
  EXPECT_GE(transformed, conv_tile_kernels().lanes == kBlock ? 30 : 0);
}

TEST_F(BlockedConvTest, ImagesAsTheyCome) {
  for (int i = 0; i < 60; ++i) {
    ConvGeometry g;
    choose_windows(g);
    g.in_channels = pick({1, 3, 4, 7});
    g.out_channels = kBlock * pick({1, 2, 3, 4});
    check(g, false, any_activation(), i % 2 == 0);
  }
}

TEST_F(BlockedConvTest, Depthwise) {
  for (int i = 0; i < 80; ++i) {
    ConvGeometry g;
    choose_windows(g);
    g.groups = kBlock * pick({1, 3, 4});
    check(g, true, any_activation(), i % 2 == 0);
  }
}

TEST_F(BlockedConvTest, LongSums) {
  ConvGeometry g;
  g.in = g.out = {4, 5};
  g.kernel = {3, 3};
  g.stride = g.dilation = {1, 1};
  g.pad_begin = g.pad_end = {1, 1};
  g.in_channels = kBlock * 40;
  g.out_channels = kBlock * 3;
  check(g, true, "Relu", true);
  check(g, true, "Sigmoid", false);
}

TEST_F(BlockedConvTest, NotANumberShows) {
  ConvGeometry g;
  g.in = g.out = {1, 2};
  g.kernel = g.stride = g.dilation = {1, 1};
  g.pad_begin = g.pad_end = {0, 0};
  g.in_channels = g.out_channels = kBlock;
  Tensor x = random(2 * kBlock);
  x.as<float>()[0] = NAN;
  Tensor w = random(kBlock * kBlock);
  auto conv = BlockedConv::make(g, {kBlock, true, {find_tile_function("Relu"), {}}}, w);
  Tensor y = random(2 * kBlock);
  conv->run(x.as<float>(), nullptr, nullptr, y.as<float>(), nullptr);
  EXPECT_TRUE(std::isnan(y.as<float>()[0]));
  EXPECT_FALSE(std::isnan(y.as<float>()[kBlock]));
}

TEST_F(BlockedConvTest, LargeKernelsAreLeftToTheLibrary) {
  ConvGeometry g;
  g.in = {20, 20};
  g.out = {10, 10};
  g.kernel = {11, 11};
  g.stride = g.dilation = {1, 1};
  g.pad_begin = g.pad_end = {0, 0};
  g.in_channels = g.out_channels = kBlock;
  EXPECT_EQ(BlockedConv::make(g, {kBlock, true, {}}, random(kBlock * kBlock * 121)), nullptr);
}

TEST_F(BlockedConvTest, LimitsLetNotANumberPass) {
  for (bool depthwise : {false, true}) {
    for (const char* activation : {"Relu", "Clip"}) {
      ConvGeometry g;
      g.in = g.out = {4, 5};
      g.kernel = {3, 3};
      g.stride = g.dilation = {1, 1};
      g.pad_begin = g.pad_end = {1, 1};
      g.groups = depthwise ? kBlock : 1;
      g.in_channels = g.out_channels = depthwise ? 1 : kBlock;
      Tensor x = random(kBlock * 20);
      Tensor w = random(g.groups * g.out_channels * g.column_rows());
      x.as<float>()[0] = std::nanf("");  // channel 0 of the first pixel
      auto conv = BlockedConv::make(g, {kBlock, true, {find_tile_function(activation), {-0.5, 0.5}}}, w);
      ASSERT_NE(conv, nullptr);
      Tensor y(DType::float32, {kBlock * 20});
      conv->run(x.as<float>(), nullptr, nullptr, y.as<float>(), nullptr);
      for (std::int64_t i = 0; i < 20; ++i) {
        bool reached = i / 5 <= 1 && i % 5 <= 1;
        EXPECT_EQ(std::isnan(y.as<float>()[i * kBlock]), reached) << "pixel " << i;
      }
    }
  }
}

}  // namespace
}  // namespace backpass
