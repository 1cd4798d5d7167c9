#include "gradient/activity.hpp"

#include "gradient_testing.hpp"

namespace backpass {
namespace {

TEST(Activity, WhichTypesHoldFloats) {
  const Type floats = Type::tensor(DType::float16, Shape{2});
  const Type integers = Type::tensor(DType::int64);
  EXPECT_TRUE(holds_floats(floats));
  EXPECT_FALSE(holds_floats(integers));
  EXPECT_TRUE(holds_floats(Type::sequence(floats)));
  EXPECT_TRUE(holds_floats(Type::optional(Type::sequence(floats))));
  EXPECT_FALSE(holds_floats(Type::sequence(integers)));
  EXPECT_FALSE(holds_floats(Type()));
  Graph graph;
  EXPECT_TRUE(carries_gradient(graph.add_value("t", floats)));
  EXPECT_FALSE(carries_gradient(graph.add_value("s", Type::sequence(floats))));
}

/// x -> a -> y, x -> aside, other -> b -> y
struct Paths : GradientFixture {
  Value* x = input({3});
  Value* other = input({3});
  Value* a = b.op("Sin", {x});
  Value* aside = b.op("Cos", {x});
  Value* off = b.op("Exp", {other});
  Value* y = b.op("Add", {a, off});
};

TEST(Activity, OnlyWhatLiesBetween) {
  Paths f;
  const std::vector<Value*> outputs = {f.y};
  const std::vector<Value*> wrt = {f.x};
  EXPECT_EQ(reached_from(f.graph, {f.x}), (ValueSet{f.x, f.a, f.aside, f.y}));
  EXPECT_EQ(needed_for(f.graph, {f.y}), (ValueSet{f.x, f.other, f.a, f.off, f.y}));
  EXPECT_EQ(active_values(f.graph, outputs, wrt), (ValueSet{f.x, f.a, f.y}));
}

TEST(Activity, NodesTellWhatTheyReadAndWrite) {
  Paths f;
  EXPECT_TRUE(reads_any(*f.y->producer, {f.off}));
  EXPECT_FALSE(reads_any(*f.y->producer, {f.x}));
  EXPECT_TRUE(writes_any(*f.y->producer, {f.y}));
  EXPECT_FALSE(writes_any(*f.y->producer, {f.a}));
}

TEST(Activity, FlatOperatorsAndIntegersEndAPath) {
  GradientFixture f;
  Value* x = f.input({3});
  Value* floor = f.b.op("Floor", {x});
  Value* after = f.b.op("Exp", {floor});
  Value* where = f.b.op("ArgMax", {x});
  Value* stopped = f.b.op("StopGradient", {x}, {}, "backpass");
  EXPECT_EQ(reached_from(f.graph, {x}), ValueSet{x});
  EXPECT_EQ(needed_for(f.graph, {after}), (ValueSet{floor, after}));
  EXPECT_EQ(needed_for(f.graph, {stopped}), ValueSet{stopped});
  EXPECT_EQ(reached_from(f.graph, {where}), ValueSet{where});
}

TEST(Activity, BodiesReadWhatTheyCapture) {
  GradientFixture f;
  Value* x = f.input({3});
  auto body = std::make_unique<Graph>();
  Value* inner = body->add_value("inner", x->type);
  body->add_capture(x, inner);
  body->outputs = {Builder(*body, nullptr, "body").op("Exp", {inner})};
  Value* y = f.graph.add_value("y", x->type);
  Node* node = f.graph.add_node("If", {f.b.constant(Tensor(DType::boolean, {}))}, {y}, "if");
  f.graph.add_subgraph(*node, "then_branch", std::move(body));
  EXPECT_TRUE(reads_any(*node, {x}));
  EXPECT_EQ(reached_from(f.graph, {x}), (ValueSet{x, y}));
  EXPECT_EQ(needed_for(f.graph, {y}), (ValueSet{x, y}));
}

}  // namespace
}  // namespace backpass
