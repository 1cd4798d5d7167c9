#include <algorithm>

#include "ops/convolution/dnnl_conv.hpp"
#include "pass_testing.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

using Ops = std::vector<std::string>;
using Ints = std::vector<std::int64_t>;

void blocked(Graph& graph, Reports& reports) {
  fold_batch_norm(graph, reports);
  block_convolutions(graph, reports);
  fuse_blocked_conv(graph, reports);
}

class BlockConvolutions : public ::testing::Test {
 protected:
  void SetUp() override {
    if (conv_block() == 0) GTEST_SKIP() << "no blocked layout on this processor";
  }

  Value* conv(Value* x, std::int64_t in, std::int64_t out, std::int64_t kernel, AttributeList attributes = {},
              bool bias = true) {
    std::vector<Value*> inputs{x, f.weights({out, in, kernel, kernel})};
    if (bias) inputs.push_back(f.weights({out}));
    std::int64_t pad = kernel / 2;
    attributes.emplace_back("pads", Ints{pad, pad, pad, pad});
    return f.b.op("Conv", std::move(inputs), std::move(attributes));
  }

  Value* image(std::int64_t channels) { return f.input({2, channels, 9, 7}, DType::float32, {"n", "", "h", "w"}); }

  PassFixture f;
};

TEST_F(BlockConvolutions, ChainStaysBlocked) {
  Value* x = f.b.op("Relu", {conv(image(3), 3, 32, 3)});
  x = f.b.op("MaxPool", {x}, {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}});
  x = conv(x, 32, 16, 1, {}, false);
  f.output(x);
  EXPECT_EQ(f.apply(blocked, 1e-4), (Ops{"BlockedConv", "BlockedMaxPool", "BlockedConv", "Unblock"}));
}

TEST_F(BlockConvolutions, ResidualSumAndActivation) {
  Value* x = f.b.op("Relu", {conv(image(3), 3, 16, 3)});
  Value* y = conv(f.b.op("Relu", {conv(x, 16, 16, 3)}), 16, 16, 3);
  Value* z = f.b.op("Relu", {f.b.op("Add", {y, x})});
  Value* skip = conv(z, 16, 32, 1, {{"strides", Ints{2, 2}}});
  Value* main = conv(f.b.op("Relu", {conv(z, 16, 32, 3, {{"strides", Ints{2, 2}}})}), 32, 32, 3);
  Value* sum = f.b.op("Relu", {f.b.op("Add", {main, skip})});
  f.output(f.b.op("GlobalAveragePool", {sum}));
  EXPECT_EQ(f.apply(blocked, 1e-4), (Ops{"BlockedConv", "BlockedConv", "BlockedConv", "BlockedConv", "BlockedConv",
                                         "BlockedConv", "BlockedGlobalAveragePool"}));
}

TEST_F(BlockConvolutions, InvertedResidualWithDepthwise) {
  Value* six = f.b.scalar(6, DType::float32);
  Value* zero = f.b.scalar(0, DType::float32);
  Value* x = conv(image(3), 3, 16, 3);
  Value* y = f.b.op("Clip", {conv(x, 16, 96, 1), zero, six});
  y = f.b.op("Clip", {conv(y, 1, 96, 3, {{"group", std::int64_t{96}}}), zero, six});
  f.output(f.b.op("Add", {x, conv(y, 96, 16, 1)}));
  EXPECT_EQ(f.apply(blocked, 1e-4), (Ops{"BlockedConv", "BlockedConv", "BlockedConv", "BlockedConv", "Unblock"}));
}

TEST_F(BlockConvolutions, SqueezeAndExcitation) {
  Value* x = f.b.op("HardSwish", {conv(image(3), 3, 32, 3)});
  Value* s = f.b.op("ReduceMean", {x, f.b.ints({2, 3})});
  s = f.b.op("HardSigmoid", {conv(f.b.op("Relu", {conv(s, 32, 16, 1)}), 16, 32, 1)});
  f.output(conv(f.b.op("Mul", {x, s}), 32, 16, 1));
  EXPECT_EQ(f.apply(blocked, 1e-4), (Ops{"BlockedConv", "BlockedGlobalAveragePool", "Block", "BlockedConv",
                                         "BlockedConv", "Mul", "BlockedConv", "Unblock"}));
}

TEST_F(BlockConvolutions, ConcatAndChannelConstants) {
  Value* x = conv(image(16), 16, 16, 3);
  Value* y = f.b.op("Mul", {conv(image(16), 16, 32, 3), f.weights({32, 1, 1})});
  Value* z = f.b.op("Concat", {x, y}, {{"axis", std::int64_t{1}}});
  z = f.b.op("AveragePool", {z}, {{"kernel_shape", Ints{2, 3}}, {"ceil_mode", std::int64_t{1}}});
  f.output(f.b.op("Tanh", {z}));
  EXPECT_EQ(f.apply(blocked, 1e-4), (Ops{"Block", "BlockedConv", "Block", "BlockedConv", "Mul", "Concat",
                                         "BlockedAveragePool", "Tanh", "Unblock"}));
}

TEST_F(BlockConvolutions, WhatDoesNotFitStaysPlain) {
  Value* odd = conv(image(16), 16, 3, 3);                                    // 3 channels are far from a block
  Value* grouped = conv(image(16), 4, 16, 3, {{"group", std::int64_t{4}}});  // groups of 4
  Value* dynamic = f.b.op("Conv", {image(16), f.input({16, 16, 1, 1})});     // weights not constant
  for (Value* v : {odd, grouped, dynamic}) f.output(f.b.op("Relu", {v}));
  EXPECT_EQ(f.apply(blocked), (Ops{"Conv", "Conv", "Conv", "Relu", "Relu", "Relu"}));
}

TEST_F(BlockConvolutions, ChannelsThatFillNoBlock) {
  Value* six = f.b.scalar(6, DType::float32);
  Value* zero = f.b.scalar(0, DType::float32);
  Value* x = conv(image(3), 3, 28, 3);
  Value* y = f.b.op("Clip", {conv(x, 28, 44, 1), zero, six});
  y = f.b.op("Clip", {conv(y, 1, 44, 3, {{"group", std::int64_t{44}}}), zero, six});
  y = f.b.op("Add", {conv(y, 44, 28, 1), x});
  f.output(f.b.op("GlobalAveragePool", {y}));
  f.output(y);
  EXPECT_EQ(f.apply(blocked, 1e-4),
            (Ops{"BlockedConv", "BlockedConv", "BlockedConv", "BlockedConv", "Unblock", "BlockedGlobalAveragePool"}));
}

TEST_F(BlockConvolutions, RestsOfBlocksAmongOtherOperators) {
  Value* x = conv(image(12), 12, 28, 3);
  Tensor divisors = f.random({28, 1, 1});
  for (std::int64_t i = 0; i < 28; ++i) divisors.as<float>()[i] += 2;
  // No numbers in what is left of the last block.
  Value* y = f.b.op("Div", {conv(image(44), 44, 28, 3), f.b.constant(divisors)});
  Value* z = f.b.op("Mul", {f.b.op("Add", {x, y}), f.weights({28, 1, 1})});
  z = f.b.op("MaxPool", {z}, {{"kernel_shape", Ints{2, 2}}});
  f.output(conv(z, 28, 20, 3));
  f.output(f.b.op("ReduceMean", {z, f.b.ints({2, 3})}, {{"keepdims", std::int64_t{0}}}));
  f.output(f.b.op("Concat", {x, y}, {{"axis", std::int64_t{1}}}));  // nothing can follow 28 channels
  f.output(f.b.op("Concat", {conv(image(16), 16, 16, 1), x}, {{"axis", std::int64_t{1}}}));
  const Ops left = f.apply(blocked, 1e-4);
  EXPECT_EQ(std::count(left.begin(), left.end(), "Conv"), 0);
  EXPECT_EQ(std::count(left.begin(), left.end(), "BlockedMaxPool"), 1);
  EXPECT_EQ(std::count(left.begin(), left.end(), "BlockedGlobalAveragePool"), 1);
}

TEST_F(BlockConvolutions, OwnInputIsNoResidual) {
  Value* x = conv(image(3), 3, 16, 3);
  f.output(f.b.op("Add", {conv(x, 16, 16, 3), x}));
  EXPECT_EQ(f.apply(blocked, 1e-4), (Ops{"BlockedConv", "BlockedConv", "Add", "Unblock"}));
}

TEST_F(BlockConvolutions, SumComesBeforeTheActivationOnly) {
  Value* x = conv(image(3), 3, 16, 3);
  Value* y = f.b.op("Relu", {conv(f.b.op("Relu", {x}), 16, 16, 3)});
  f.output(f.b.op("Add", {y, x}));
  EXPECT_EQ(f.apply(blocked, 1e-4), (Ops{"BlockedConv", "Relu", "BlockedConv", "Add", "Unblock"}));
}

TEST_F(BlockConvolutions, TheSameBitsForAnyNumberOfThreads) {
  Value* x = f.b.op("Relu", {conv(f.input({1, 3, 33, 33}), 3, 32, 3)});
  x = f.b.op("Relu", {conv(x, 1, 32, 3, {{"group", std::int64_t{32}}})});
  f.output(conv(conv(x, 32, 64, 1), 64, 32, 3));
  f.apply(blocked, 1e-4);
  std::vector<Tensor> results;
  for (int threads : {1, 2, 3}) {
    ThreadScope scope(threads);
    results.push_back(f.run_planned().front());
  }
  for (const Tensor& t : results) {
    EXPECT_TRUE(std::equal(t.as<float>(), t.as<float>() + t.size(), results.front().as<float>()));
  }
}

TEST(FoldBatchNorm, BecomesWeightsAndBias) {
  for (DType dtype : {DType::float32, DType::float64}) {
    for (bool bias : {false, true}) {
      PassFixture f;
      std::vector<Value*> inputs{f.input({2, 3, 5, 5}, dtype), f.weights({4, 3, 3, 3}, dtype)};
      if (bias) inputs.push_back(f.weights({4}, dtype));
      Value* y = f.b.op("Conv", inputs, {{"strides", Ints{2, 1}}});
      Tensor variance = f.random({4}, dtype);
      for (std::int64_t i = 0; i < 4; ++i) {
        if (dtype == DType::float32) {
          variance.as<float>()[i] += 2;
        } else {
          variance.as<double>()[i] += 2;
        }
      }
      Value* norm = f.b.op("BatchNormalization", {y, f.weights({4}, dtype), f.weights({4}, dtype),
                                                  f.weights({4}, dtype), f.b.constant(variance)});
      f.output(norm);
      EXPECT_EQ(f.apply(fold_batch_norm, dtype == DType::float32 ? 1e-5 : 1e-12), Ops{"Conv"});
    }
  }
}

TEST(FoldBatchNorm, SharedConvolutionStays) {
  PassFixture f;
  Value* y = f.b.op("Conv", {f.input({2, 3, 5, 5}), f.weights({4, 3, 3, 3})});
  Value* ones = f.b.constant(Tensor::from<float>(DType::float32, {4}, std::vector<float>{1, 1, 1, 1}));
  f.output(f.b.op("BatchNormalization", {y, ones, ones, ones, ones}));
  f.output(y);
  EXPECT_EQ(f.apply(fold_batch_norm), (Ops{"Conv", "BatchNormalization"}));
}

}  // namespace
}  // namespace backpass
