#include "graph/graph.hpp"

#include <gtest/gtest.h>

#include "graph/builder.hpp"
#include "graph/clone.hpp"
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

using Readers = std::vector<Node*>;

TEST(GraphReaders, ListEveryReadOfAValue) {
  Fixture f;
  Value* y = f.graph.add_value("y");
  Node* square = f.graph.add_node("Mul", {f.x, f.x}, {y});
  EXPECT_EQ(Readers(f.x->readers), (Readers{square, square}));
  EXPECT_EQ(f.graph.only_reader(f.x), nullptr);
  EXPECT_EQ(f.graph.use_count(y), 0U);
  f.graph.outputs = {y};
  EXPECT_EQ(f.graph.use_count(y), 1U);
  EXPECT_EQ(f.graph.only_reader(y), nullptr);
  EXPECT_EQ(f.graph.use_count(nullptr), 0U);
  EXPECT_EQ(f.graph.only_reader(nullptr), nullptr);
}

TEST(GraphReaders, FollowChangedInputs) {
  Fixture f;
  Value* a = f.graph.add_value("a");
  Value* b = f.graph.add_value("b");
  Node* clip = f.graph.add_node("Clip", {f.x}, {a});
  Node* relu = f.graph.add_node("Relu", {a}, {b});
  f.graph.set_input(*clip, 2, f.x);
  EXPECT_EQ(clip->inputs.size(), 3U);
  EXPECT_EQ(clip->input(1), nullptr);
  EXPECT_EQ(f.x->readers.size(), 2U);
  f.graph.set_inputs(*clip, {f.x});
  EXPECT_EQ(f.graph.only_reader(f.x), clip);
  f.graph.replace_uses(a, f.x);
  EXPECT_TRUE(a->readers.empty());
  EXPECT_EQ(relu->input(0), f.x);
  EXPECT_EQ(f.x->readers.size(), 2U);
  f.graph.outputs = {b};
  EXPECT_EQ(f.graph.remove_dead_nodes(), 1);
  EXPECT_EQ(f.graph.only_reader(f.x), relu);
  EXPECT_EQ(verify(f.graph), std::vector<std::string>{});
}

TEST(GraphReaders, ARemovedNodeReadsNothing) {
  Fixture f;
  Node* relu = f.graph.add_node("Relu", {f.x}, {f.graph.add_value("y")});
  f.graph.remove_node(relu);
  EXPECT_TRUE(f.x->readers.empty());
}

TEST(GraphReaders, RewritingReleasesWhatNobodyReadsAnyMore) {
  Fixture f;
  Builder b(f.graph, nullptr, "t");
  Value* exp = b.op("Exp", {f.x});
  Value* both = b.op("Add", {b.op("Neg", {exp}), f.x});
  f.graph.outputs = {both};
  f.graph.rewrite(*both->producer, "", "Relu", {f.x});
  EXPECT_TRUE(exp->readers.empty());
  EXPECT_EQ(f.graph.only_reader(f.x), both->producer);
  EXPECT_EQ(f.graph.remove_dead_nodes(), 2);
  EXPECT_EQ(verify(f.graph), std::vector<std::string>{});
}

TEST(GraphReaders, WhoCapturesAValueForASubgraphReadsIt) {
  Fixture f;
  Value* condition = f.graph.add_value("condition", Type::tensor(DType::boolean, Shape{}));
  Value* y = f.graph.add_value("y");
  Node* branch = f.graph.add_node("If", {condition}, {y});
  auto body = std::make_unique<Graph>();
  Graph& inside = *body;
  Value* seen = inside.add_value("x", f.x->type);
  inside.add_capture(f.x, seen);
  inside.outputs = {seen};
  EXPECT_TRUE(f.x->readers.empty());
  f.graph.add_subgraph(*branch, "then_branch", std::move(body));
  EXPECT_EQ(f.graph.only_reader(f.x), branch);
  EXPECT_EQ(inside.parent, &f.graph);

  Value* other = f.graph.add_value("other", f.x->type);
  f.graph.replace_uses(f.x, other);
  EXPECT_EQ(inside.captures[0].outer, other);
  inside.redirect_captures([&](Value*) { return f.x; });
  EXPECT_TRUE(other->readers.empty());
  EXPECT_EQ(f.graph.only_reader(f.x), branch);
  inside.add_capture(other, inside.add_value("other", other->type));
  EXPECT_EQ(f.graph.only_reader(other), branch);
  inside.remove_captures([&](const Capture& c) { return c.outer == other; });
  EXPECT_TRUE(other->readers.empty());
  f.graph.remove_node(branch);
  EXPECT_TRUE(f.x->readers.empty());
}

TEST(GraphReaders, ACloneHasReadersOfItsOwn) {
  Fixture f;
  Value* y = f.graph.add_value("y");
  Node* relu = f.graph.add_node("Relu", {f.x}, {y});
  f.graph.outputs = {y};
  const Clone copy = clone(f.graph);
  EXPECT_EQ(f.graph.only_reader(f.x), relu);
  EXPECT_EQ(copy.graph->only_reader(copy.of(f.x)), copy.graph->nodes()[0]);
  EXPECT_EQ(verify(*copy.graph), std::vector<std::string>{});
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
