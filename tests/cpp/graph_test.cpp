#include "graph/graph.hpp"

#include <gtest/gtest.h>

#include "graph/builder.hpp"
#include "graph/infer.hpp"

namespace backpass {
namespace {

struct Fixture {
  Graph graph;
  Value* x;
  Fixture() {
    graph.name = "g";
    x = graph.add_value("x", Type::tensor(DType::float32, Shape{Dim::symbol("n"), Dim(3)}));
    graph.inputs.push_back(x);
  }
};

TEST(Graph, NamesAreMadeUnique) {
  Graph g;
  EXPECT_EQ(g.add_value("a")->name, "a");
  EXPECT_EQ(g.add_value("a")->name, "a_1");
  EXPECT_EQ(g.add_value("a")->name, "a_2");
}

TEST(Graph, SortPutsProducersFirst) {
  Fixture f;
  Value* a = f.graph.add_value("a");
  Value* b = f.graph.add_value("b");
  f.graph.add_node("Relu", {a}, {b}, "second");
  f.graph.add_node("Relu", {f.x}, {a}, "first");
  f.graph.outputs = {b};
  f.graph.sort_topologically();
  EXPECT_EQ(f.graph.nodes()[0]->name, "first");
  EXPECT_TRUE(verify(f.graph).empty());
}

TEST(Graph, CyclesAreNamed) {
  Fixture f;
  Value* a = f.graph.add_value("a");
  Value* b = f.graph.add_value("b");
  f.graph.add_node("Relu", {a}, {b}, "one");
  f.graph.add_node("Relu", {b}, {a}, "two");
  try {
    f.graph.sort_topologically();
    FAIL() << "no error";
  } catch (const InvalidInput& e) {
    EXPECT_NE(std::string(e.what()).find("'one'"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("cycle"), std::string::npos);
  }
}

TEST(Graph, DeadNodesGo) {
  Fixture f;
  Builder b(f.graph, nullptr, "t");
  Value* kept = b.op("Relu", {f.x});
  b.op("Exp", {f.x});
  f.graph.outputs = {kept};
  EXPECT_EQ(f.graph.remove_dead_nodes(), 1);
  EXPECT_EQ(f.graph.nodes().size(), 1U);
}

TEST(Infer, ShapeArithmeticGivesSymbolicExtents) {
  Fixture f;
  Builder b(f.graph, nullptr, "t");
  Value* shape = b.op("Shape", {f.x});
  Value* n = b.op("Gather", {shape, b.ints({0})}, {{"axis", std::int64_t{0}}});
  Value* target = b.op("Concat", {n, b.ints({3, 1})}, {{"axis", std::int64_t{0}}});
  Value* y = b.op("Reshape", {f.x, target});
  ASSERT_TRUE(y->type.shape.has_value());
  EXPECT_EQ(to_string(*y->type.shape), "[n,3,1]");
}

TEST(Infer, AMinusOneInReshapeIsDivided) {
  Fixture f;
  Builder b(f.graph, nullptr, "t");
  Value* y = b.op("Reshape", {f.x, b.ints({-1})});
  ASSERT_TRUE(y->type.shape.has_value());
  EXPECT_EQ(to_string(*y->type.shape), "[3*n]");
  Value* z = b.op("Reshape", {y, b.ints({3, -1})});
  EXPECT_EQ(to_string(*z->type.shape), "[3,n]");
}

TEST(Print, ShowsTypesAndAttributes) {
  Fixture f;
  Builder b(f.graph, nullptr, "t");
  f.graph.outputs = {b.op("Softmax", {f.x}, {{"axis", std::int64_t{1}}})};
  std::string text = print(f.graph);
  EXPECT_NE(text.find("float32[n,3] = Softmax(%x) {axis=1}"), std::string::npos) << text;
}

}  // namespace
}  // namespace backpass
