#include "graph/clone.hpp"

#include "gradient_testing.hpp"

namespace backpass {
namespace {

/// softmax(if(flag) then x * w else x * x), w a constant of the outer graph.
struct Branches : GradientFixture {
  Value* x = input({3}, {"n"});
  Value* w = b.constant(random({3}, DType::float64));
  Value* flag = flag_input(true);
  Value* y = graph.add_value("y", x->type);

  Branches() {
    Node* node = graph.add_node("If", {flag}, {y}, "choice");
    for (bool yes : {true, false}) {
      auto body = std::make_unique<Graph>();
      Value* inner = body->add_value("inner", x->type);
      Value* factor = body->add_value("factor", w->type);
      body->add_capture(x, inner);
      body->add_capture(w, factor);
      body->outputs = {Builder(*body, nullptr, "body").op("Mul", {inner, yes ? factor : inner})};
      graph.add_subgraph(*node, yes ? "then_branch" : "else_branch", std::move(body));
    }
    output(b.op("Softmax", {y}, {{"axis", std::int64_t{0}}}));
  }

  Value* flag_input(bool value) {
    Value* v = graph.add_value("flag", Type::tensor(DType::boolean, Shape{}));
    graph.inputs.push_back(v);
    Tensor t(DType::boolean, {});
    *t.as<bool>() = value;
    feeds.emplace_back(t);
    return v;
  }
};

TEST(Clone, ReadsAndComputesTheSame) {
  Branches f;
  const Clone copy = clone(f.graph);
  EXPECT_EQ(print(*copy.graph), print(f.graph));
  EXPECT_TRUE(verify(*copy.graph).empty()) << verify(*copy.graph).front();
  for (bool flag : {true, false}) {
    *f.fed(f.flag).as<bool>() = flag;
    EXPECT_EQ(interpret(*copy.graph, f.feeds).at(0).tensor.to_doubles(), f.run().at(0).to_doubles());
  }
}

TEST(Clone, TensorsAreSharedAndNothingElse) {
  Branches f;
  const std::string before = print(f.graph);
  const Clone copy = clone(f.graph);
  EXPECT_EQ(copy.of(f.w)->constant->data(), f.w->constant->data());
  for (const auto& v : f.graph.values()) EXPECT_NE(copy.of(v.get()), v.get()) << v->name;
  EXPECT_EQ(copy.of(f.y)->producer, copy.graph->nodes()[0]);
  Builder(*copy.graph, nullptr, "more").op("Exp", {copy.of(f.y)});
  copy.graph->rename(copy.of(f.x), "renamed");
  copy.graph->outputs.clear();
  EXPECT_EQ(print(f.graph), before);
}

TEST(Clone, BodiesCaptureFromTheCopyAndNotFromTheOriginal) {
  Branches f;
  const Clone copy = clone(f.graph);
  const Graph& body = *copy.graph->nodes()[0]->subgraph("then_branch");
  EXPECT_EQ(body.parent, copy.graph.get());
  EXPECT_EQ(body.captures[0].outer, copy.of(f.x));
  EXPECT_EQ(body.captures[1].outer, copy.of(f.w));
}

TEST(Clone, TheCopyOfABodyCapturesTheSameOuterValues) {
  Branches f;
  const Graph& body = *f.graph.nodes()[0]->subgraph("then_branch");
  const Clone copy = clone(body);
  EXPECT_EQ(copy.graph->parent, &f.graph);
  EXPECT_EQ(copy.graph->captures[0].outer, f.x);
  EXPECT_EQ(copy.graph->captures[0].inner, copy.of(body.captures[0].inner));
}

TEST(Clone, NodesCanBeRepeatedWithOtherInputs) {
  Branches f;
  Graph twice;
  Value* first = twice.add_value("first", f.x->type);
  Value* second = twice.add_value("second", f.x->type);
  Value* flag = twice.add_value("flag", f.flag->type);
  twice.inputs = {first, second, flag};
  for (Value* argument : {first, second}) {
    ValueMap copies = {{f.x, argument}, {f.flag, flag}};
    clone_into(twice, f.graph, copies);
    twice.outputs.push_back(copies.at(f.graph.outputs[0]));
  }
  EXPECT_TRUE(verify(twice).empty()) << verify(twice).front();
  const Tensor one = f.fed(f.x);
  const Tensor other = f.random({3}, DType::float64);
  const std::vector<RuntimeValue> got = interpret(twice, {one, other, f.feeds[1]});
  EXPECT_EQ(got[0].tensor.to_doubles(), f.run().at(0).to_doubles());
  f.fed(f.x) = other;
  EXPECT_EQ(got[1].tensor.to_doubles(), f.run().at(0).to_doubles());
}

}  // namespace
}  // namespace backpass
