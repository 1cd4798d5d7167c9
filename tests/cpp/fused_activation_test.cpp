// Activations at the end of products and convolutions: every operator that is one tile function, with the same bits.
#include "ops/activations/fused_activation.hpp"

#include <algorithm>
#include <cstring>
#include <set>

#include "ops/convolution/dnnl_conv.hpp"
#include "ops/pointwise/tile_op.hpp"
#include "pass_testing.hpp"

namespace backpass {
namespace {

using Ops = std::vector<std::string>;

/// A node to be put behind a product; numbers are constant inputs.
struct Activation {
  std::string op;
  std::string domain = {};
  AttributeList attributes = {};
  std::vector<double> numbers = {};

  Value* after(PassFixture& f, Value* x) const {
    std::vector<Value*> inputs{x};
    for (double n : numbers) inputs.push_back(f.b.scalar(n, x));
    return f.b.op(op, inputs, attributes, domain);
  }
};

/// Those that can have one input, of real numbers.
std::vector<const OpDef*> unary_tile_operators() {
  std::vector<const OpDef*> ops = all_ops();
  std::erase_if(ops, [](const OpDef* def) {
    return def->tile == nullptr || def->inputs.min != 1 || !def->types.has(DType::float64) || def->name == "Cast";
  });
  return ops;
}

/// Every unary operator as it is, and those that become unary by attributes or constants.
std::vector<Activation> activations() {
  const std::set<std::string_view> no_function{"IsNaN", "IsInf", "IsFinite",  // give bool
                                               "Max",   "Min",   "Sum",
                                               "Mean",  "Clip"};  // of one input: the input itself
  std::vector<Activation> all;
  for (const OpDef* def : unary_tile_operators()) {
    if (!no_function.contains(def->name)) all.push_back({std::string(def->name), std::string(def->domain)});
  }
  all.push_back({"Gelu", "", {{"approximate", std::string("tanh")}}});
  all.push_back({"Swish", "", {{"alpha", 0.7F}}});
  all.push_back({"QuickGelu", "com.microsoft", {{"alpha", 0.3F}}});
  all.push_back({"Celu", "", {{"alpha", 0.3F}}});
  all.push_back({"Shrink", "", {{"lambd", 0.2F}, {"bias", 0.1F}}});
  all.push_back({"Clip", "", {}, {-0.1, 0.7}});
  all.push_back({"Clip", "", {}, {0.3}});
  all.push_back({"Pow", "", {}, {2}});
  all.push_back({"Pow", "", {}, {3}});
  all.push_back({"Pow", "", {}, {0.5}});
  return all;
}

void expect_same_bits(const Tensor& a, const Tensor& b, const std::string& what) {
  ASSERT_EQ(a.dims(), b.dims()) << what;
  ASSERT_EQ(a.bytes(), b.bytes()) << what;
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.bytes()), 0) << what;
}

TEST(FusedActivation, EveryUnaryTileOperatorFollowsAProduct) {
  ASSERT_GT(activations().size(), 45U);
  for (const Activation& activation : activations()) {
    for (DType dtype : {DType::float32, DType::float64}) {
      for (std::int64_t rows : {3, 40}) {  // products of few and of many rows have loops of their own
        PassFixture f;
        Value* y = f.b.op("MatMul", {f.input({rows, 20}, dtype), f.weights({20, 77}, dtype)});
        f.output(activation.after(f, f.b.op("Add", {y, f.weights({77}, dtype)})));
        const Tensor alone = f.run().front();
        fuse_linear(f.graph, f.reports);
        const std::string what = concat(activation.op, " of ", name_of(dtype), " after ", rows, " rows");
        ASSERT_EQ(f.operators(), Ops{"Linear"}) << what;
        ASSERT_EQ(f.reports.size(), 1U) << what;
        const UnaryTile fused = activation_of(*f.graph.nodes().front());
        EXPECT_NE(f.reports.front().what.find(fused.function->name), std::string::npos) << f.reports.front().what;
        expect_same_bits(alone, f.run().front(), what);
        expect_same_bits(alone, f.run_planned().front(), what);
      }
    }
  }
}

/// The activated result of a blocked convolution; `apart`: another reader keeps the activation a node of its own.
Tensor after_convolution(const Activation& activation, std::int64_t kernel, std::int64_t groups, bool apart, Ops& ops) {
  PassFixture f;
  Value* y = f.b.op("Conv", {f.input({2, 32, 13, 14}), f.weights({32, 32 / groups, kernel, kernel}), f.weights({32})},
                    {{"group", groups}});
  f.output(activation.after(f, y));
  if (apart) f.output(y);
  block_convolutions(f.graph, f.reports);
  fuse_blocked_conv(f.graph, f.reports);
  ops = f.operators();
  return f.run_planned().front();
}

TEST(FusedActivation, EveryUnaryTileOperatorFollowsAConvolution) {
  if (conv_block() == 0) GTEST_SKIP() << "no blocked layout on this processor";
  struct Kind {
    std::int64_t kernel, groups;
  };
  for (const Activation& activation : activations()) {
    if (!activation.domain.empty()) continue;                   // stays plain
    for (Kind kind : {Kind{3, 1}, Kind{3, 32}, Kind{11, 1}}) {  // dense, depthwise, by the library
      Ops ops;
      const Tensor apart = after_convolution(activation, kind.kernel, kind.groups, true, ops);
      ASSERT_EQ(std::count(ops.begin(), ops.end(), activation.op), 1) << activation.op;
      const Tensor fused = after_convolution(activation, kind.kernel, kind.groups, false, ops);
      ASSERT_EQ(ops, (Ops{"Block", "BlockedConv", "Unblock"})) << activation.op;
      expect_same_bits(apart, fused, concat(activation.op, " kernel ", kind.kernel, " groups ", kind.groups));
    }
  }
}

TEST(FusedActivation, WhatIsNoFunctionOfOneOperandStays) {
  for (const char* op : {"Add", "PRelu", "Max", "Clip"}) {
    PassFixture f;
    Value* bound = f.input({1});
    Value* y = f.b.op("MatMul", {f.input({5, 20}), f.weights({20, 9})});
    f.output(f.b.op(op, {y, bound}));
    fuse_linear(f.graph, f.reports);
    EXPECT_EQ(f.operators(), (Ops{"MatMul", op}));
  }
  PassFixture f;
  f.output(f.b.op("IsNaN", {f.b.op("MatMul", {f.input({5, 20}), f.weights({20, 9})})}));
  fuse_linear(f.graph, f.reports);
  EXPECT_EQ(f.operators(), (Ops{"MatMul", "IsNaN"}));
}

TEST(FusedActivation, AConstantThatAddsAnAxisIsNoParameter) {
  PassFixture f;
  const std::vector<float> two{2};
  f.output(f.b.op("Pow", {f.b.op("MatMul", {f.input({5, 20}), f.weights({20, 9})}),
                          f.b.constant(Tensor::from<float>(DType::float32, {1, 1, 1}, two))}));
  fuse_linear(f.graph, f.reports);
  EXPECT_EQ(f.operators(), (Ops{"MatMul", "Pow"}));
}

TEST(FusedActivation, UnknownNamesAreErrors) {
  PassFixture f;
  Value* x = f.input({5, 20});
  EXPECT_THROW(f.b.op("Linear", {x, f.weights({20, 9})}, {{"activation", std::string("relu")}}, "backpass"), Error);
  EXPECT_THROW(f.b.op("Linear", {x, f.weights({20, 9})}, {{"activation", std::string("Add")}}, "backpass"), Error);
}

TEST(TileFunctions, AreFoundByTheirOwnName) {
  std::size_t count = 0;
  for (const OpDef* def : all_ops()) {
    if (def->tile == nullptr || def->tile->function == nullptr) continue;
    EXPECT_EQ(find_tile_function(def->tile->function->name), def->tile->function) << def->name;
    ++count;
  }
  EXPECT_GT(count, 60U);
  EXPECT_EQ(find_tile_function("nonsense"), nullptr);
}

TEST(TileFunctions, ASecondOneOfTheSameNameIsRefused) {
  const TileFunction* known = find_tile_function("Relu");
  const TileFunction other{"Relu", 1, known->loop};
  EXPECT_THROW(RegisterTileFunction{other}, InternalBug);
  EXPECT_EQ(find_tile_function("Relu"), known);
}

}  // namespace
}  // namespace backpass
