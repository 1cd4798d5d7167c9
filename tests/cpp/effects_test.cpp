// Nodes with effects, and what nothing may do to them.
#include "graph/effects.hpp"

#include <gtest/gtest.h>

#include <random>

#include "graph/builder.hpp"
#include "ops/collectives/adasum.hpp"
#include "plan/schedule.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

struct EffectsFixture {
  Graph graph;
  Builder b{graph, nullptr, "t"};
  Value* x;

  EffectsFixture() : x(graph.add_value("x", Type::tensor(DType::float32, Shape{Dim(3)}))) { graph.inputs.push_back(x); }

  Node* sum(Value* of, std::string_view name) {
    Value* result = graph.add_value(name, of->type);
    return graph.add_node("AllReduce", {of}, {result}, name, "com.microsoft");
  }

  std::vector<std::string> effects() const {
    std::vector<std::string> names;
    for (const Node* n : graph.nodes()) {
      if (has_effect(*n)) names.push_back(n->name);
    }
    return names;
  }
};

TEST(Effects, StayThoughNobodyReadsThem) {
  EffectsFixture f;
  Value* read = f.b.op("Tanh", {f.x});
  f.sum(read, "lonely");
  f.graph.outputs = {f.b.op("Relu", {f.x})};
  EXPECT_EQ(f.graph.remove_dead_nodes(), 0);
  EXPECT_TRUE(verify(f.graph).empty());
  EXPECT_EQ(find_effect(f.graph)->name, "lonely");
}

TEST(Effects, KeepTheirInputsWhenTheirReaderIsRewritten) {
  EffectsFixture f;
  Node* sum = f.sum(f.x, "sum");
  Value* y = f.b.op("Relu", {sum->output(0)});
  f.graph.outputs = {y};
  f.graph.rewrite(*y->producer, "", "Tanh", {f.x});
  EXPECT_EQ(sum->input(0), f.x);
  EXPECT_EQ(f.graph.remove_dead_nodes(), 0);
}

TEST(Effects, KeepTheirOrderWhenOneReadsWhatWasAddedLast) {
  EffectsFixture f;
  Node* first = f.sum(f.x, "first");
  Node* second = f.sum(f.x, "second");
  f.graph.set_input(*first, 0, f.b.op("Tanh", {f.x}));
  f.graph.outputs = {first->output(0), second->output(0)};
  f.graph.sort_topologically();
  EXPECT_TRUE(verify(f.graph).empty());
  EXPECT_EQ(f.effects(), (std::vector<std::string>{"first", "second"}));
}

TEST(Effects, OfAnUnsortedFileAreSortedByWhatTheyRead) {
  EffectsFixture f;
  Value* later = f.graph.add_value("later", f.x->type);
  Node* reader = f.sum(later, "reader");
  Node* producer = f.sum(f.x, "producer");
  f.graph.set_input(*reader, 0, producer->output(0));
  f.graph.outputs = {reader->output(0)};
  f.graph.sort_topologically();
  EXPECT_EQ(f.effects(), (std::vector<std::string>{"producer", "reader"}));
}

TEST(Effects, ThatFindASizeAreNotMovedAhead) {
  EffectsFixture f;
  Value* go = f.b.constant(Tensor(DType::boolean, {}));
  Value* remote = f.b.integer(1);
  Node* sum = f.sum(f.x, "sum");
  Value* signal = f.graph.add_value("signal", Type::tensor(DType::boolean, Shape{}));
  Value* found = f.graph.add_value("found", Type::tensor(DType::float32, Shape{Dim::symbol("found@0")}));
  f.graph.add_node("Recv", {go, remote}, {signal, found}, "recv", "com.microsoft");
  f.graph.outputs = {sum->output(0), found};
  ASSERT_TRUE(finds_size(*found->producer));
  const std::vector<const Node*> order = order_to_run(f.graph);
  EXPECT_EQ(order.front(), sum);
  EXPECT_EQ(order.back(), found->producer);
}

TEST(Adasum, HasTheSameBitsOnAnyNumberOfThreads) {
  std::mt19937 generator(3);
  std::normal_distribution<float> normal;
  std::vector<float> a(100003);
  std::vector<float> b(a.size());
  for (float& v : a) v = normal(generator);
  for (float& v : b) v = normal(generator);
  std::vector<float> one = a;
  std::vector<float> four = a;
  const auto count = static_cast<std::int64_t>(a.size());
  {
    const ThreadScope threads(1);
    adasum_pair(DType::float32, count, one.data(), b.data());
  }
  {
    const ThreadScope threads(4);
    adasum_pair(DType::float32, count, four.data(), b.data());
  }
  EXPECT_EQ(one, four);
}

}  // namespace
}  // namespace backpass
