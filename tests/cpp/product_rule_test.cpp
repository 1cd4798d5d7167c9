#include "gradient/product_rule.hpp"

#include "gradient_testing.hpp"

namespace backpass {
namespace {

std::int64_t count(const Graph& graph, std::string_view op) {
  return std::count_if(graph.nodes().begin(), graph.nodes().end(), [&](const Node* n) { return n->op == op; });
}

TEST(ProductRule, EveryKindOfOperandsIsRight) {
  const std::vector<std::pair<Dims, Dims>> table = {
      {{2, 3}, {3, 4}},          {{3}, {3}},          {{3}, {3, 4}},       {{2, 3}, {3}},
      {{3}, {5, 3, 2}},          {{5, 2, 3}, {3}},    {{5, 2, 3}, {3, 4}}, {{5, 2, 3}, {5, 3, 4}},
      {{2, 1, 2, 3}, {4, 3, 2}}, {{2, 3}, {5, 3, 2}}, {{0, 3}, {3, 4}},
  };
  for (bool standard_only : {false, true}) {
    for (const auto& [left, right] : table) {
      SCOPED_TRACE(to_string(left) + " @ " + to_string(right));
      GradientFixture f;
      Value* a = f.input(left);
      Value* c = f.input(right);
      f.output(f.b.op("MatMul", {a, c}));
      f.expect_right_gradients({a, c}, {.standard_only = standard_only});
    }
  }
}

TEST(ProductRule, SymbolicExtentsAreRight) {
  for (bool standard_only : {false, true}) {
    GradientFixture f;
    Value* a = f.input({5, 2, 3}, {"batch", "rows", "inner"});
    Value* c = f.input({1, 3, 4}, {"other", "inner", "columns"});
    f.output(f.b.op("MatMul", {a, c}));
    f.expect_right_gradients({a, c}, {.standard_only = standard_only});
  }
}

TEST(ProductRule, AMatrixBehindManyRowsGetsItsGradientFromOneProduct) {
  GradientFixture f;
  Value* rows = f.input({5, 2, 3});
  Value* matrix = f.input({3, 4});
  f.output(f.b.op("MatMul", {rows, matrix}));
  f.differentiate({rows, matrix});
  EXPECT_EQ(count(f.graph, "Gemm"), 2);
  EXPECT_EQ(count(f.graph, "ReduceSum"), 0);
  EXPECT_EQ(count(f.graph, "Transpose"), 0);
}

TEST(ProductRule, FusedBatchesTransposeOnTheWay) {
  for (bool standard_only : {false, true}) {
    GradientFixture f;
    Value* a = f.input({5, 2, 3});
    Value* c = f.input({5, 3, 4});
    f.output(f.b.op("MatMul", {a, c}));
    f.differentiate({a, c}, {.standard_only = standard_only});
    EXPECT_EQ(count(f.graph, "FusedMatMul"), standard_only ? 0 : 2);
    EXPECT_EQ(count(f.graph, "Transpose"), standard_only ? 2 : 0);
  }
}

TEST(ProductRule, LastAxesChangePlaces) {
  RuleFixture f;
  Value* a = f.input({2, 2, 3});
  GradientContext g = f.context(f.b.op("Identity", {a}), {a});
  Value* swapped = swap_last_axes(g, a);
  EXPECT_EQ(swapped->type.str(), "float64[2,3,2]");
  const std::vector<double> before = f.fed(a).to_doubles();
  const std::vector<double> after = f.contents(swapped);
  EXPECT_EQ(after[1], before[3]);
  EXPECT_EQ(after[6], before[6]);
  EXPECT_EQ(after[7], before[9]);
}

}  // namespace
}  // namespace backpass
