// Tile programs against plain loops, and fused graphs against the same graphs run node by node.
#include "kernels/tile.hpp"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <limits>
#include <random>

#include "graph/builder.hpp"
#include "graph/infer.hpp"
#include "kernels/tile_reduce.hpp"
#include "kernels/tile_text.hpp"
#include "ops/pointwise/pointwise.hpp"
#include "ops/shape_rules.hpp"
#include "plan/lower.hpp"
#include "runtime/interpreter.hpp"
#include "support/half.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

Tensor random_tensor(const Dims& dims, std::uint32_t seed, DType dtype = DType::float32) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> distribution(-2, 2);
  Tensor t(dtype, dims);
  for (std::int64_t i = 0; i < t.size(); ++i) {
    float value = distribution(generator);
    if (dtype == DType::float32) t.as<float>()[i] = value;
    if (dtype == DType::float16) t.as<Half>()[i] = Half(value);
    if (dtype == DType::boolean) t.as<bool>()[i] = value > 0;
  }
  return t;
}

// a * b + a, each operand read through its broadcast strides.
std::vector<float> expected_product(const Tensor& a, const Tensor& b, const Dims& out) {
  Dims as = broadcast_strides(a.dims(), out);
  Dims bs = broadcast_strides(b.dims(), out);
  std::vector<float> result;
  for (std::int64_t i = 0; i < element_count(out); ++i) {
    std::int64_t ai = 0;
    std::int64_t bi = 0;
    std::int64_t rest = i;
    for (std::size_t axis = out.size(); axis-- > 0; rest /= out[axis]) {
      ai += rest % out[axis] * as[axis];
      bi += rest % out[axis] * bs[axis];
    }
    float product = a.as<float>()[ai] * b.as<float>()[bi];
    result.push_back(product + a.as<float>()[ai]);
  }
  return result;
}

TileProgram product_program() {
  TileBuilder b(2);
  TileRegister x = b.input(0, DType::float32);
  TileRegister y = b.input(1, DType::float32);
  b.output(b.apply(tile_add(), {b.apply(tile_mul(), {x, y}), x}), DType::float32);
  return b.finish();
}

class TileBroadcast : public testing::TestWithParam<std::pair<Dims, Dims>> {};

TEST_P(TileBroadcast, EqualsPlainLoops) {
  const auto& [first, second] = GetParam();
  Tensor a = random_tensor(first, 1);
  Tensor b = random_tensor(second, 2);
  Tensor out(DType::float32, broadcast_dims(first, second));
  std::vector<Dims> dims{first, second};
  Kernel kernel = bind_tile_program(std::make_shared<const TileProgram>(product_program()), dims, out.dims());
  std::vector<float> expected = expected_product(a, b, out.dims());
  for (int threads : {1, 3}) {
    ThreadScope scope(threads);
    std::fill_n(out.as<float>(), out.size(), -1000.0F);
    const void* in[] = {a.data(), b.data()};
    void* results[] = {out.mutable_data()};
    kernel({in, results, nullptr});
    for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(out.as<float>()[i], expected[i]) << "element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, TileBroadcast,
    testing::Values(std::pair<Dims, Dims>{{}, {}}, std::pair<Dims, Dims>{{1}, {5}}, std::pair<Dims, Dims>{{7}, {}},
                    std::pair<Dims, Dims>{{0, 3}, {3}}, std::pair<Dims, Dims>{{64, 100}, {100}},
                    std::pair<Dims, Dims>{{64, 100}, {64, 1}}, std::pair<Dims, Dims>{{3, 1}, {1, 5}},
                    std::pair<Dims, Dims>{{2, 3, 50, 70}, {3, 1, 1}}, std::pair<Dims, Dims>{{4, 1, 6}, {1, 5, 1}},
                    std::pair<Dims, Dims>{{5, 9000}, {9000}}, std::pair<Dims, Dims>{{5, 9000}, {5, 1}},
                    std::pair<Dims, Dims>{{100000}, {1}}, std::pair<Dims, Dims>{{3, 40000}, {1, 1}},
                    std::pair<Dims, Dims>{{7, 1, 33, 1, 5}, {1, 11, 1, 4, 5}},
                    std::pair<Dims, Dims>{{2, 2, 2, 2, 2, 2, 2, 2, 2}, {2, 1, 2, 1, 2, 1, 2, 1, 2}}));

TEST(Tile, OutputMayBeAnInput) {
  Tensor a = random_tensor({777}, 1);
  Tensor b = random_tensor({777}, 2);
  std::vector<float> expected = expected_product(a, b, {777});
  std::vector<Dims> dims{{777}, {777}};
  Kernel kernel = bind_tile_program(std::make_shared<const TileProgram>(product_program()), dims, {777});
  for (std::size_t reused : {0U, 1U}) {
    Tensor copies[] = {Tensor::from<float>(DType::float32, {777}, a.values<float>()),
                       Tensor::from<float>(DType::float32, {777}, b.values<float>())};
    const void* in[] = {copies[0].data(), copies[1].data()};
    void* out[] = {copies[reused].mutable_data()};
    kernel({in, out, nullptr});
    for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(copies[reused].as<float>()[i], expected[i]);
  }
}

TEST(Tile, EarlyOutputMayBeAnInput) {
  // Output 0 is computed first, while the input it replaces is still needed.
  TileBuilder b(1);
  TileRegister x = b.input(0, DType::float32);
  TileRegister square = b.apply(tile_mul(), {x, x});
  TileRegister twice = b.apply(tile_add(), {x, x});
  b.output(square, DType::float32);
  b.output(twice, DType::float32);
  std::vector<Dims> dims{{3}};
  Kernel kernel = bind_tile_program(std::make_shared<const TileProgram>(b.finish()), dims, {3});
  float data[] = {1, 2, 3};
  float other[3];
  const void* in[] = {data};
  void* out[] = {data, other};
  kernel({in, out, nullptr});
  EXPECT_EQ(data[2], 9);
  EXPECT_EQ(other[2], 6);
}

TEST(Tile, ManyBroadcastOperandsDoNotOverflowTheStack) {
  constexpr std::size_t kOperands = 600;
  TileBuilder b(kOperands);
  TileRegister total = b.input(0, DType::float32);
  for (std::size_t i = 1; i < kOperands; ++i) total = b.apply(tile_add(), {total, b.input(i, DType::float32)});
  b.output(total, DType::float32);
  std::vector<Dims> dims(kOperands, Dims{1});
  dims[0] = {100};
  Kernel kernel = bind_tile_program(std::make_shared<const TileProgram>(b.finish()), dims, {100});
  std::vector<float> ones(100, 1);
  std::vector<const void*> in(kOperands, ones.data());
  std::vector<float> result(100);
  void* out[] = {result.data()};
  kernel({in.data(), out, nullptr});
  EXPECT_EQ(result[99], 600);
}

// ---- Instruction sets

// Output of a float32 operator on its own, prepared for the instruction set that is chosen now.
std::vector<float> run_alone(const OpDef& def, std::size_t inputs) {
  constexpr std::int64_t kCount = 1013;
  const Node node{.name = "",
                  .op = std::string(def.name),
                  .domain = "",
                  .def = &def,
                  .inputs = GraphList(std::vector<Value*>(inputs, nullptr)),
                  .outputs = {nullptr},
                  .attributes = {},
                  .subgraphs = {}};
  PrepareContext c(node);
  std::vector<Tensor> operands;
  for (std::size_t i = 0; i < inputs; ++i) operands.push_back(random_tensor({kCount}, static_cast<std::uint32_t>(i)));
  for (const Tensor& t : operands) c.inputs.push_back({DType::float32, t.dims(), nullptr, true});
  c.outputs.push_back({DType::float32, {kCount}, nullptr, true});
  Kernel kernel = def.prepare(c);
  std::vector<const void*> in;
  for (const Tensor& t : operands) in.push_back(t.data());
  std::vector<float> result(kCount);
  void* out[] = {result.data()};
  kernel({in.data(), out, nullptr});
  return result;
}

bool gives_float32(const OpDef& def) {
  return def.tile != nullptr && def.tile->function != nullptr && !def.tile->function->gives_bool &&
         def.types.has(DType::float32) && def.tile->function->arity <= 2;
}

TEST(Tile, EveryInstructionSetGivesTheSame) {
  std::vector<const OpDef*> ops = all_ops();
  std::erase_if(ops, [](const OpDef* def) { return !gives_float32(*def); });
  ASSERT_GT(ops.size(), 40U);
  std::vector<std::vector<float>> best;
  auto arity = [](const OpDef* def) { return static_cast<std::size_t>(def->tile->function->arity); };
  for (const OpDef* def : ops) best.push_back(run_alone(*def, arity(def)));
  for (std::int64_t target = hwy::SupportedTargets(); target != 0; target &= target - 1) {
    hwy::SetSupportedTargetsForTest(target & -target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    for (std::size_t k = 0; k < ops.size(); ++k) {
      std::vector<float> other = run_alone(*ops[k], arity(ops[k]));
      for (std::size_t i = 0; i < other.size(); ++i) {
        if (std::isnan(best[k][i]) && std::isnan(other[i])) continue;
        ASSERT_NEAR(other[i], best[k][i], 2e-6F * std::max(1.0F, std::abs(best[k][i]))) << ops[k]->name;
      }
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// ---- As text

std::string text_of(const TileProgram& program) { return write_tile_program(program).code; }

TEST(TileText, IsReadAsItWasWritten) {
  TileBuilder b(2);
  TileRegister x = b.input(0, DType::float16);
  TileRegister rows = b.input(1, DType::float32, TileShape::row);
  TileRegister centred = b.apply(*find_tile_function("Sub"), {x, rows});
  TileRegister bent = b.apply(*find_tile_function("LeakyRelu"), {centred}, {0.1, 0, 0});
  b.output(b.apply(tile_mul(), {bent, b.immediate(2.5, DType::float32)}), DType::float16);
  b.output(b.reduce(kTileMax, bent), DType::float32, TileShape::row);
  const TileProgram program = b.finish();
  const TileText text = write_tile_program(program);
  EXPECT_EQ(text.code,
            "in float16; in float32 row; Cast 0 float32; Spread 1 float32; Sub 3 4 float32; LeakyRelu 5 float32 0.1; "
            "Mul 6 2 float32; Cast 7 float16; ReduceMax 6 float32 row; out 8 float16; out 9 float32 row");
  ASSERT_EQ(text.constants.size(), 1U);
  EXPECT_EQ(text.constants[0].to_doubles(), std::vector<double>{2.5});
  const TileProgram again = read_tile_program(text.code, text.constants);
  EXPECT_EQ(text_of(again), text.code);
  ASSERT_EQ(again.code.size(), program.code.size());
  for (std::size_t i = 0; i < again.code.size(); ++i) {
    EXPECT_EQ(again.code[i].loop, program.code[i].loop);
    EXPECT_EQ(again.code[i].row_loop, program.code[i].row_loop);
    EXPECT_EQ(again.code[i].params, program.code[i].params);
  }
  const std::vector<TileKind> outputs = tile_output_kinds(text.code);
  ASSERT_EQ(outputs.size(), 2U);
  EXPECT_EQ(outputs[0].type, DType::float16);
  EXPECT_EQ(outputs[0].shape, TileShape::full);
  EXPECT_EQ(outputs[1].shape, TileShape::row);
}

TEST(TileText, ParametersKeepEveryBit) {
  for (double value : {0.1, 1.0 / 3, -1e-300, 5e-324, std::numeric_limits<double>::infinity()}) {
    TileBuilder b(1);
    TileRegister x = b.input(0, DType::float64);
    b.output(b.apply(*find_tile_function("LeakyRelu"), {x}, {0, value, 0}), DType::float64);
    const TileText text = write_tile_program(b.finish());
    EXPECT_EQ(read_tile_program(text.code, text.constants).code[0].params[1], value);
  }
}

TEST(TileText, WhatCannotBeReadIsABug) {
  for (const char* code : {"", "in float32", "in float; out 0", "in float32; Nothing 0 float32; out 1 float32",
                           "in float32; Relu 7 float32; out 1 float32", "in float32; Relu float32; out 1 float32",
                           "in float32; Relu 0 float32 x; out 1 float32", "in float32; Relu 0 float32; out float32"}) {
    EXPECT_THROW(read_tile_program(code, {}), InternalBug) << code;
  }
}

// ---- Fusion

struct Model {
  Graph graph;
  std::vector<RuntimeValue> feeds;
  Builder b{graph, nullptr, "t"};

  Value* input(const Shape& shape, const Tensor& value) {
    Value* v = graph.add_value("x", Type::tensor(value.dtype(), shape));
    graph.inputs.push_back(v);
    feeds.emplace_back(value);
    return v;
  }
};

std::size_t count(const Graph& graph, std::string_view op) {
  std::size_t n = 0;
  for (const Node* node : graph.nodes()) n += node->op == op ? 1 : 0;
  return n;
}

// Fuses and compares all outputs bit by bit with what the graph gave before.
void fuse_and_compare(Model& m, float tolerance = 0) {
  std::vector<RuntimeValue> before = interpret(m.graph, m.feeds);
  Reports reports;
  fuse_tiles(m.graph, reports);
  ASSERT_TRUE(verify(m.graph).empty()) << verify(m.graph)[0] << print(m.graph);
  std::vector<RuntimeValue> after = interpret(m.graph, m.feeds);
  ASSERT_EQ(before.size(), after.size());
  for (std::size_t k = 0; k < before.size(); ++k) {
    ASSERT_EQ(before[k].tensor.dims(), after[k].tensor.dims()) << print(m.graph);
    ASSERT_EQ(before[k].tensor.dtype(), after[k].tensor.dtype());
    std::vector<double> x = before[k].tensor.to_doubles();
    std::vector<double> y = after[k].tensor.to_doubles();
    for (std::size_t i = 0; i < x.size(); ++i)
      ASSERT_NEAR(x[i], y[i], tolerance * std::max(1.0, std::abs(x[i]))) << "output " << k << print(m.graph);
  }
}

TEST(FuseTiles, ChainWithBiasAndScalars) {
  Model m;
  Dim n = Dim::symbol("n");
  Value* x = m.input({n, Dim(37)}, random_tensor({5, 37}, 1));
  Value* bias = m.input({Dim(37)}, random_tensor({37}, 2));
  Value* u = m.b.op("Add", {x, bias});
  Value* v = m.b.op("Mul", {u, m.b.scalar(0.5, u)});
  Value* t = m.b.op("Tanh", {v});
  m.graph.outputs = {m.b.op("Mul", {t, u})};
  fuse_and_compare(m);
  ASSERT_EQ(m.graph.nodes().size(), 1U);
  EXPECT_EQ(m.graph.nodes()[0]->inputs.size(), 2U);
  EXPECT_EQ(to_string(*m.graph.outputs[0]->type.shape), to_string(Shape{n, Dim(37)}));
}

TEST(FuseTiles, ComparisonSelectionAndSeveralOutputs) {
  Model m;
  Value* x = m.input({Dim(4), Dim(9)}, random_tensor({4, 9}, 1));
  Value* y = m.input({Dim(4), Dim(1)}, random_tensor({4, 1}, 2));
  Value* mask = m.b.op("Greater", {x, y});
  Value* chosen = m.b.op("Where", {mask, x, m.b.scalar(-1, x)});
  Value* cast = m.b.op("Cast", {mask}, {{"to", static_cast<std::int64_t>(DType::float32)}});
  m.graph.outputs = {mask, m.b.op("Add", {chosen, cast}), chosen};
  fuse_and_compare(m);
  EXPECT_EQ(m.graph.nodes().size(), 1U);
}

TEST(FuseTiles, NothingGoesAroundAnotherNode) {
  // exp -> softmax -> add(exp, softmax): exp and add must not become one node.
  Model m;
  Value* x = m.input({Dim(3), Dim(8)}, random_tensor({3, 8}, 1));
  Value* e = m.b.op("Exp", {x});
  Value* s = m.b.op("Softmax", {e});
  Value* r = m.b.op("Relu", {s});
  m.graph.outputs = {m.b.op("Add", {e, r})};
  fuse_and_compare(m);
  EXPECT_EQ(count(m.graph, "Exp"), 1U);
  EXPECT_EQ(count(m.graph, "Tile"), 1U);
}

TEST(FuseTiles, UnrelatedReaderInBetweenDoesNotPrevent) {
  Model m;
  Value* x = m.input({Dim(3), Dim(8)}, random_tensor({3, 8}, 1));
  Value* e = m.b.op("Exp", {x});
  Value* side = m.b.op("Softmax", {e});
  Value* late = m.b.op("Softmax", {x});
  m.graph.outputs = {m.b.op("Add", {e, late}), side};
  fuse_and_compare(m);
  EXPECT_EQ(count(m.graph, "Tile"), 1U);
  EXPECT_EQ(count(m.graph, "Exp"), 0U);
}

TEST(FuseTiles, SymbolsThatMayDifferStayApart) {
  Model m;
  Value* x = m.input({Dim::symbol("a")}, random_tensor({1}, 1));
  Value* y = m.input({Dim::symbol("b")}, random_tensor({4}, 2));
  Value* u = m.b.op("Relu", {x});
  Value* v = m.b.op("Add", {u, y});
  m.graph.outputs = {m.b.op("Exp", {v}), u};
  fuse_and_compare(m);
  EXPECT_EQ(count(m.graph, "Relu"), 1U);
}

TEST(FuseTiles, ImmediateOfHigherRankKeepsTheShape) {
  Model m;
  Value* x = m.input({Dim(3)}, random_tensor({3}, 1));
  Value* u = m.b.op("Add", {x, m.b.constant(random_tensor({1, 1}, 3))});
  m.graph.outputs = {m.b.op("Exp", {u})};
  fuse_and_compare(m);
  EXPECT_EQ(m.graph.nodes().size(), 1U);
}

TEST(FuseTiles, HalvesStayInFloatInBetween) {
  Model m;
  Value* x = m.input({Dim(50)}, random_tensor({50}, 1, DType::float16));
  Value* y = m.b.op("Mul", {m.b.op("Exp", {x}), x});
  Value* wide = m.b.op("Cast", {y}, {{"to", static_cast<std::int64_t>(DType::float32)}});
  m.graph.outputs = {m.b.op("Add", {wide, wide}), y};
  fuse_and_compare(m, 0.05F);
  EXPECT_EQ(m.graph.nodes().size(), 1U);
}

TEST(FuseTiles, CastToHalfRounds) {
  Model m;
  Value* x = m.input({Dim(50)}, random_tensor({50}, 1));
  Value* h = m.b.op("Cast", {x}, {{"to", static_cast<std::int64_t>(DType::float16)}});
  m.graph.outputs = {m.b.op("Cast", {h}, {{"to", static_cast<std::int64_t>(DType::float32)}}), h};
  fuse_and_compare(m);
  EXPECT_EQ(m.graph.nodes().size(), 1U);
}

TEST(FuseTiles, IntegerVectorsKeepTheirKnownContents) {
  Model m;
  Value* x = m.input({Dim::symbol("n"), Dim(4)}, random_tensor({2, 4}, 1));
  Value* shape = m.b.op("Mul", {m.b.op("Shape", {x}), m.b.ints({1, 2})});
  m.graph.outputs = {m.b.op("Add", {shape, m.b.ints({0, 0})})};
  fuse_and_compare(m);
  EXPECT_EQ(count(m.graph, "Tile"), 0U);
}

Value* reduce(Model& m, const char* op, Value* x) { return m.b.op(op, {x, m.b.ints({-1})}); }

class RowFusion : public testing::TestWithParam<Dims> {};

TEST_P(RowFusion, LayerNormalization) {
  Model m;
  const Dims& dims = GetParam();
  Shape shape(dims.size());
  for (std::size_t i = 0; i < dims.size(); ++i) shape[i] = Dim::symbol("d" + std::to_string(i));
  shape.back() = Dim(dims.back());
  Value* x = m.input(shape, random_tensor(dims, 1));
  Value* gamma = m.input({Dim(dims.back())}, random_tensor({dims.back()}, 2));
  Value* centered = m.b.op("Sub", {x, reduce(m, "ReduceMean", x)});
  Value* variance = reduce(m, "ReduceMean", m.b.op("Mul", {centered, centered}));
  Value* deviation = m.b.op("Sqrt", {m.b.op("Add", {variance, m.b.scalar(1e-5, x)})});
  m.graph.outputs = {m.b.op("Mul", {m.b.op("Div", {centered, deviation}), gamma}), deviation};
  fuse_and_compare(m, 1e-5F);
  EXPECT_EQ(m.graph.nodes().size() == 1, dims.back() != 1) << print(m.graph);
}

TEST_P(RowFusion, MaskedSoftmax) {
  Model m;
  const Dims& dims = GetParam();
  Value* x = m.input(to_shape(dims), random_tensor(dims, 1));
  Value* temperature = m.input({}, random_tensor({}, 4));
  Value* masked = m.b.op("Where", {m.input(to_shape(dims), random_tensor(dims, 2, DType::boolean)),
                                   m.b.op("Mul", {x, temperature}), m.b.scalar(-1000, x)});
  Value* e = m.b.op("Exp", {m.b.op("Sub", {masked, reduce(m, "ReduceMax", masked)})});
  m.graph.outputs = {m.b.op("Div", {e, reduce(m, "ReduceSum", e)})};
  fuse_and_compare(m, 1e-6F);
  EXPECT_EQ(m.graph.nodes().size() == 1, dims.back() != 1) << print(m.graph);
}

TEST_P(RowFusion, RowsOnly) {
  Model m;
  const Dims& dims = GetParam();
  Value* x = m.input(to_shape(dims), random_tensor(dims, 1));
  Value* low = reduce(m, "ReduceMin", m.b.op("Abs", {x}));
  m.graph.outputs = {m.b.op("Sub", {reduce(m, "ReduceMax", x), low}), reduce(m, "ReduceSum", x)};
  fuse_and_compare(m, 1e-5F);
}

INSTANTIATE_TEST_SUITE_P(Shapes, RowFusion,
                         testing::Values(Dims{7}, Dims{3, 5}, Dims{4, 1}, Dims{300, 64}, Dims{2, 3, 5, 37}, Dims{0, 4},
                                         Dims{6, 5000}, Dims{1, 1, 9}, Dims{1000, 3}));

TEST(FuseTiles, EmptyRowsHaveSums) {
  Model m;
  Value* x = m.input({Dim(3), Dim::symbol("n")}, random_tensor({3, 0}, 1));
  m.graph.outputs = {m.b.op("Add", {reduce(m, "ReduceSum", m.b.op("Exp", {x})), m.b.scalar(2, x)})};
  fuse_and_compare(m);
}

TEST(FuseTiles, NaNsReachTheMaximum) {
  Model m;
  Tensor data = random_tensor({4, 21}, 1);
  data.as<float>()[5] = std::nanf("");
  data.as<float>()[41] = std::nanf("");
  Value* x = m.input({Dim(4), Dim(21)}, data);
  Value* is_nan = m.b.op("IsNaN", {reduce(m, "ReduceMax", m.b.op("Mul", {x, m.b.scalar(2, x)}))});
  m.graph.outputs = {m.b.op("Cast", {is_nan}, {{"to", static_cast<std::int64_t>(DType::float32)}})};
  fuse_and_compare(m);
  std::vector<double> flags = interpret(m.graph, m.feeds)[0].tensor.to_doubles();
  EXPECT_EQ(flags, (std::vector<double>{1, 1, 0, 0}));
}

// Random graphs of pointwise nodes, with a few others in between.
class RandomFusion : public testing::TestWithParam<int> {};

TEST_P(RandomFusion, GivesTheSame) {
  std::mt19937 random(static_cast<std::uint32_t>(GetParam()));
  auto pick = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  Model m;
  std::vector<Value*> values;
  const std::vector<std::pair<Shape, Dims>> shapes{
      {{Dim::symbol("n"), Dim(6)}, {7, 6}}, {{Dim(6)}, {6}}, {{Dim::symbol("n"), Dim(1)}, {7, 1}}, {{}, {}}};
  for (std::uint32_t i = 0; i < 5; ++i) {
    const auto& [shape, dims] = shapes[i < 2 ? 0 : i - 1];
    values.push_back(m.input(shape, random_tensor(dims, i)));
  }
  for (int i = 0; i < 40; ++i) {
    Value* a = values[pick(values.size())];
    Value* b = values[pick(values.size())];
    switch (pick(10)) {
      case 0:
        values.push_back(m.b.op("Tanh", {a}));
        break;
      case 1:
        values.push_back(m.b.op("Softmax", {m.b.op("Reshape", {values[0], m.b.ints({-1, 6})})}));
        break;
      case 2:
        values.push_back(m.b.op("Min", {a, b, m.b.scalar(1, a)}));
        break;
      case 3:
        values.push_back(m.b.op("Where", {m.b.op("Less", {a, b}), a, b}));
        break;
      case 4:
        values.push_back(m.b.op("Mul", {a, b}));
        break;
      case 5:
        values.push_back(m.b.op("Softmax", {values[pick(2)]}));
        break;
      case 6:
        values.push_back(m.b.op("Sigmoid", {m.b.op("Sub", {a, b})}));
        break;
      default:
        values.push_back(m.b.op("Add", {a, m.b.scalar(0.25, a)}));
        break;
    }
  }
  m.graph.outputs = {values.back(), values[values.size() - 4], values[10]};
  m.graph.remove_dead_nodes();
  fuse_and_compare(m, 1e-4F);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomFusion, testing::Range(0, 60));

}  // namespace
}  // namespace backpass
