#include "training/update_graph.hpp"

#include <gtest/gtest.h>

#include "graph/overwriting.hpp"
#include "graph_text.hpp"
#include "plan/schedule.hpp"
#include "support/interruption.hpp"
#include "training/shared_memory.hpp"

namespace backpass {
namespace {

using Names = std::vector<std::string>;

/// Names of nodes in the order they run in.
Names order_of(const Graph& graph) {
  Names names;
  for (const Node* node : order_to_run(graph)) names.push_back(node->name);
  return names;
}

/// A graph whose outputs from number `first` on are gradients.
std::unique_ptr<Graph> training_graph(const std::string& text, std::size_t first) {
  std::unique_ptr<Graph> graph = parse_graph(text);
  graph->first_gradient = first;
  graph->gradient_count = graph->outputs.size() - first;
  return graph;
}

const UpdateRule kSgd{"SGDUpdate", {}, {}};
const UpdateRule kAdamW{"AdamWUpdate", {}, {"momentum0", "momentum1"}};

std::unique_ptr<Graph> two_layers() {
  return training_graph(R"(graph 'g' (%x: float32[2,2], %w: float32[2,2], %v: float32[2,2])
  %shape = int64[1]{4}
  %a = MatMul(%x, %w) 'first'
  %y = MatMul(%a, %v) 'second'
  %dv = MatMul(%a, %y) 'dv'
  %flat = Reshape(%v, %shape) 'view'
  %da = MatMul(%y, %v) 'da'
  %late = Tanh(%flat) 'late'
  %dw = MatMul(%x, %da) 'dw'
  return %y, %late, %dw, %dv
)",
                        2);
}

TEST(UpdateGraph, UpdatesStandBehindGradientAndLastReader) {
  const std::unique_ptr<Graph> graph = two_layers();
  const UpdateGraph made = with_updates(*graph, Names{"w", "v"}, kSgd);
  ASSERT_EQ(made.obstacle, "");
  EXPECT_EQ(verify(*made.graph), Names{});
  EXPECT_EQ(order_of(*made.graph), (Names{"first", "second", "dv", "view", "da", "late", "v", "dw", "w"}));
  EXPECT_EQ(made.graph->outputs[2]->producer->name, "w");
  EXPECT_EQ(made.graph->outputs[3]->producer->name, "v");
  EXPECT_EQ(graph->outputs[2]->name, "dw");  // which is as it was
}

TEST(UpdateGraph, StatesComeStateByState) {
  const UpdateGraph made = with_updates(*two_layers(), Names{"w", "v"}, kAdamW);
  Names inputs, outputs;
  for (const Value* v : made.graph->inputs) inputs.push_back(v->name);
  for (const Value* v : made.graph->outputs) outputs.push_back(v->name);
  EXPECT_EQ(inputs, (Names{"x", "w", "v", "learning_rate", "step", "w.momentum0", "v.momentum0", "w.momentum1",
                           "v.momentum1"}));
  EXPECT_EQ(outputs, (Names{"y", "late", "w_updated", "v_updated", "w.momentum0_updated", "v.momentum0_updated",
                            "w.momentum1_updated", "v.momentum1_updated"}));
  EXPECT_EQ(made.graph->gradient_count, 6U);
}

TEST(UpdateGraph, EachParameterHasAttributesOfItsOwn) {
  const UpdateRule rule{"SGDUpdate", {{{"rate_scale", 0.5F}}, {{"weight_decay", 0.25F}}}, {}};
  const UpdateGraph made = with_updates(*two_layers(), Names{"w", "v"}, rule);
  const Node *w = made.graph->outputs[2]->producer, *v = made.graph->outputs[3]->producer;
  EXPECT_EQ(w->attr_float("rate_scale", 1), 0.5F);
  EXPECT_FALSE(w->has_attribute("weight_decay"));
  EXPECT_EQ(v->attr_float("weight_decay", 0), 0.25F);
  EXPECT_FALSE(v->has_attribute("rate_scale"));
  const UpdateRule shared{"SGDUpdate", {{{"rate_scale", 0.5F}}}, {}};
  const UpdateGraph alike = with_updates(*two_layers(), Names{"w", "v"}, shared);
  EXPECT_EQ(alike.graph->outputs[3]->producer->attr_float("rate_scale", 1), 0.5F);
}

TEST(UpdateGraph, WhatIsReadAfterwardsIsAnObstacle) {
  const std::unique_ptr<Graph> given = training_graph(R"(graph 'g' (%x: float32[4], %w: float32[4])
  %y = Identity(%w) 'view'
  %dw = Mul(%x, %w) 'dw'
  return %y, %dw
)",
                                                      1);
  EXPECT_EQ(with_updates(*given, Names{"w"}, kSgd).obstacle, "'y' is parameter 'w' itself, before its update");
  const std::unique_ptr<Graph> crossed = training_graph(R"(graph 'g' (%v: float32[4], %w: float32[4])
  %y = Mul(%v, %w) 'product'
  %dv = Identity(%w) 'dv'
  %dw = Identity(%v) 'dw'
  return %y, %dv, %dw
)",
                                                        1);
  EXPECT_EQ(with_updates(*crossed, Names{"v", "w"}, kSgd).obstacle, "'dw' is parameter 'v' itself, before its update");
  EXPECT_EQ(with_updates(*two_layers(), Names{"w", "elsewhere"}, kSgd).obstacle, "gradient 'dv' belongs to no input");
}

TEST(Overwriting, SequencesAndBodiesHandValuesOn) {
  const std::unique_ptr<Graph> graph = parse_graph(R"(graph 'g' (%c: bool[], %w: float32[2], %v: float32[2])
  %all = SequenceConstruct(%w) 'all'
  %at = int64[]{0}
  %same = SequenceAt(%all, %at) 'same'
  %new = Tanh(%w) 'new'
  %z = If(%c)
    then_branch:
      graph 'then' () captures %v
        %p = Neg(%v)
        return %p
    else_branch:
      graph 'else' () captures %v
        %q = Identity(%v)
        return %q
  return %same, %new, %z
)");
  const ValueSet of_w = values_in_memory_of(graph->inputs[1]);
  EXPECT_TRUE(of_w.contains(graph->outputs[0]));
  EXPECT_FALSE(of_w.contains(graph->outputs[1]));
  EXPECT_TRUE(values_in_memory_of(graph->inputs[2]).contains(graph->outputs[2]));
}

TEST(SharedMemory, IsFoundByBytes) {
  Tensor whole(DType::float32, {8});
  auto part = [&](std::int64_t from, std::int64_t count) {
    return Tensor(DType::float32, {count}, whole.as<float>() + from, whole.owner());
  };
  const std::vector<RuntimeValue> read = {part(6, 2), part(5, 2)};
  EXPECT_FALSE(shares_memory(std::vector<Tensor>{part(0, 3), part(3, 2)}, read));
  EXPECT_TRUE(shares_memory(std::vector<Tensor>{part(0, 3), part(2, 2)}, {}));
  EXPECT_TRUE(shares_memory(std::vector<Tensor>{part(4, 2)}, read));
  EXPECT_TRUE(shares_memory(std::vector<Tensor>{part(7, 1)}, std::vector{RuntimeValue::sequence(read)}));
  EXPECT_FALSE(shares_memory(std::vector<Tensor>{part(6, 0)}, read));
}

TEST(Interruption, NothingStopsACallThatIsCommitted) {
  CancelFlag flag;
  flag.set();
  const InterruptionScope outer(&flag, 0);
  {
    const InterruptionScope call(nullptr, 0);
    EXPECT_THROW(check_interruption(), Cancelled);
    commit_call();
    EXPECT_TRUE(call.is_committed());
    EXPECT_NO_THROW(check_interruption());
  }
  EXPECT_FALSE(outer.is_committed());
  EXPECT_THROW(check_interruption(), Cancelled);
}

}  // namespace
}  // namespace backpass
