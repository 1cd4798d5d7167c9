#include "pass_testing.hpp"

namespace backpass {
namespace {

using Ops = std::vector<std::string>;

TEST(FuseLinear, BiasAndActivation) {
  for (const char* activation : {"Relu", "Gelu", "Tanh", "Sigmoid", "LeakyRelu", "HardSwish", "HardSigmoid"}) {
    PassFixture f;
    Value* x = f.input({2, 7, 20}, DType::float32, {"batch", "seq"});
    Value* y = f.b.op("Add", {f.weights({33}), f.b.op("MatMul", {x, f.weights({20, 33})})});
    f.output(f.b.op(activation, {y}));
    EXPECT_EQ(f.apply(fuse_linear), Ops{"Linear"}) << activation;
  }
}

TEST(FuseLinear, TransposedProduct) {
  for (bool batched : {false, true}) {
    PassFixture f;
    const Dims lead = batched ? Dims{3} : Dims{};
    auto shaped = [&](Dims d) {
      d.insert(d.begin(), lead.begin(), lead.end());
      return d;
    };
    Value* y = f.b.op("MatMul", {f.input(shaped({5, 20})), f.input(shaped({20, 33}))});
    std::vector<std::int64_t> perm = batched ? std::vector<std::int64_t>{0, 2, 1} : std::vector<std::int64_t>{1, 0};
    f.output(f.b.op("Transpose", {y}, {{"perm", perm}}));
    EXPECT_EQ(f.apply(fuse_linear), Ops{"Linear"}) << batched;
  }
}

TEST(FuseLinear, TransposedProductOfOtherRanks) {
  PassFixture f;
  Value* y = f.b.op("MatMul", {f.input({3, 5, 20}), f.weights({20, 33})});
  f.output(f.b.op("Transpose", {y}, {{"perm", std::vector<std::int64_t>{0, 2, 1}}}));
  EXPECT_EQ(f.apply(fuse_linear), (Ops{"MatMul", "Transpose"}));
}

TEST(FuseLinear, SwishInTwoNodes) {
  PassFixture f;
  Value* x = f.input({5, 20});
  Value* y = f.b.op("MatMul", {x, f.weights({20, 33})});
  f.output(f.b.op("Mul", {y, f.b.op("Sigmoid", {y})}));
  EXPECT_EQ(f.apply(fuse_linear), Ops{"Linear"});
}

TEST(FuseLinear, GemmWithActivation) {
  PassFixture f;
  Value* x = f.input({20, 5});
  Value* y = f.b.op("Gemm", {x, f.weights({33, 20}), f.weights({1, 33})},
                    {{"transA", std::int64_t{1}}, {"transB", std::int64_t{1}}, {"alpha", 0.5F}});
  f.output(f.b.op("Clip", {y, f.b.scalar(-0.5, DType::float32), f.b.scalar(0.25, DType::float32)}));
  EXPECT_EQ(f.apply(fuse_linear), Ops{"Linear"});
}

TEST(FuseLinear, AttentionTranspositionsAndScale) {
  PassFixture f;
  std::vector<std::int64_t> heads{0, 2, 1, 3};
  Value* q = f.b.op("Transpose", {f.input({2, 6, 3, 8}, DType::float32, {"b", "s"})}, {{"perm", heads}});
  Value* k = f.b.op("Transpose", {f.input({2, 6, 3, 8}, DType::float32, {"b", "s"})}, {{"perm", heads}});
  Value* v = f.b.op("Transpose", {f.input({2, 6, 3, 8}, DType::float32, {"b", "s"})}, {{"perm", heads}});
  Value* kt = f.b.op("Transpose", {k}, {{"perm", std::vector<std::int64_t>{0, 1, 3, 2}}});
  Value* scores = f.b.op("Div", {f.b.op("MatMul", {q, kt}), f.b.scalar(2.5, DType::float32)});
  Value* mixed = f.b.op("MatMul", {f.b.op("Softmax", {scores}), v});
  f.output(f.b.op("Transpose", {mixed}, {{"perm", heads}}));
  EXPECT_EQ(f.apply(fuse_linear), (Ops{"Linear", "Softmax", "Linear"}));
}

TEST(FuseLinear, TranspositionOfManyMatrices) {
  PassFixture f;
  Value* k = f.input({2, 3, 6, 8}, DType::float32, {"b", "", "s"});
  Value* joined =
      f.b.op("Reshape", {k, f.b.op("Concat", {f.b.ints({-1}), f.b.op("Shape", {k}, {{"start", std::int64_t{2}}})},
                                   {{"axis", std::int64_t{0}}})});
  Value* swapped = f.b.op("Transpose", {joined}, {{"perm", std::vector<std::int64_t>{0, 2, 1}}});
  Value* shape = f.b.op("Shape", {f.b.op("Transpose", {k}, {{"perm", std::vector<std::int64_t>{0, 1, 3, 2}}})});
  Value* kt = f.b.op("Reshape", {swapped, shape});
  f.output(f.b.op("MatMul", {f.input({2, 3, 6, 8}, DType::float32, {"b", "", "s"}), kt}));
  EXPECT_EQ(f.apply(fuse_linear), Ops{"Linear"});
}

TEST(FuseLinear, FactorOfAnOperand) {
  PassFixture f;
  Value* x = f.b.op("Mul", {f.b.scalar(0.125, DType::float32), f.input({5, 20})});
  f.output(f.b.op("MatMul", {x, f.input({20, 9})}));
  EXPECT_EQ(f.apply(fuse_linear), Ops{"Linear"});
}

TEST(FuseLinear, DoubleFactorsMustBeExact) {
  PassFixture f;
  Value* y = f.b.op("MatMul", {f.input({5, 20}, DType::float64), f.input({20, 9}, DType::float64)});
  f.output(f.b.op("Mul", {y, f.b.scalar(0.1, DType::float64)}));
  EXPECT_EQ(f.apply(fuse_linear, 1e-14), (Ops{"MatMul", "Mul"}));
}

TEST(FuseLinear, WhatOthersReadStays) {
  PassFixture f;
  Value* y = f.b.op("MatMul", {f.input({5, 20}), f.weights({20, 9})});
  f.output(f.b.op("Add", {y, f.weights({9})}));
  f.output(y);
  EXPECT_EQ(f.apply(fuse_linear), (Ops{"MatMul", "Add"}));
}

TEST(FuseLinear, ResidualsAndRowVectorsAreNoBias) {
  PassFixture f;
  Value* y = f.b.op("MatMul", {f.input({3, 3}), f.weights({3, 3})});
  f.output(f.b.op("Add", {y, f.input({3, 3})}));
  Value* z = f.b.op("MatMul", {f.input({4, 3, 5}), f.weights({5})});
  f.output(f.b.op("Add", {z, f.weights({3})}));
  EXPECT_EQ(f.apply(fuse_linear), (Ops{"MatMul", "Add", "MatMul", "Add"}));
}

TEST(FuseLinear, UnreadableTranspositionStays) {
  PassFixture f;
  Value* x = f.b.op("Transpose", {f.input({4, 3, 5})}, {{"perm", std::vector<std::int64_t>{2, 0, 1}}});
  f.output(f.b.op("MatMul", {x, f.weights({3, 9})}));
  EXPECT_EQ(f.apply(fuse_linear), (Ops{"Transpose", "MatMul"}));
}

TEST(FuseLinear, VectorsAsOperands) {
  PassFixture f;
  Value* y = f.b.op("MatMul", {f.input({5}), f.weights({5, 9})});
  f.output(f.b.op("Relu", {f.b.op("Add", {y, f.weights({9})})}));
  EXPECT_EQ(f.apply(fuse_linear), Ops{"Linear"});
}

}  // namespace
}  // namespace backpass
