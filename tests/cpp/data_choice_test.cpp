// What a look at a batch finds, and which passes follow from it.
#include "training/data_choice.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "allocations.hpp"
#include "pass_testing.hpp"

namespace backpass {
namespace {

using Names = std::vector<std::string>;
constexpr std::int64_t kIgnored = -100;

/// Losses get their rows with a label only.
void leave_out_labels(Graph& graph, Reports& reports) {
  const std::vector<Node*> nodes = graph.nodes();
  for (Node* node : nodes) {
    if (node->op != "SoftmaxCrossEntropyLoss") continue;
    Builder b(graph, node, "rows");
    Value* rows = b.op("LabelledRows", {node->input(1)}, {{"ignore_index", kIgnored}}, "backpass");
    graph.set_input(*node, 0, b.op("Gather", {node->input(0), rows}));
    graph.set_input(*node, 1, b.op("Gather", {node->input(1), rows}));
    reports.push_back({.node = node->label(), .what = "rows without a label are left out"});
  }
}

/// As if what a mask hides were left out; it only finds it.
void leave_out_padding(Graph& graph, Reports& reports) {
  for (Value* mask : graph.inputs) {
    if (mask->name != "mask") continue;
    Builder b(graph, nullptr, "tokens");
    Value* asked = b.op("LabelledRows", {graph.inputs[1]}, {{"ignore_index", kIgnored}}, "backpass");
    Value* seen =
        b.op("Cast", {b.op("Unsqueeze", {mask, b.ints({1, 2})})}, {{"to", static_cast<std::int64_t>(DType::boolean)}});
    const AttributeList attributes = {{"asked", std::int64_t{1}},
                                      {"causal", std::vector<std::int64_t>{0}},
                                      {"outside", std::vector<std::int64_t>{0}},
                                      {"unseen", std::vector<std::int64_t>{0}}};
    graph.outputs.push_back(b.op("NeededRows", {b.op("Shape", {mask}), asked, seen}, attributes, "backpass"));
    reports.push_back({.node = "mask", .what = "padding is left out"});
  }
}

constexpr Pass kPassesOfTest[] = {
    {"skip_ignored_labels", leave_out_labels, Side::before, Graphs::plans, true},
    {"skip_padding", leave_out_padding, Side::before, Graphs::plans, true},
};

Tensor labels_of(std::int64_t labelled, std::int64_t total) {
  Tensor t(DType::int64, {total});
  for (std::int64_t i = 0; i < total; ++i) t.as<std::int64_t>()[i] = i < labelled ? i % 3 : kIgnored;
  return t;
}

/// A classifier of rows x, with one label each.
struct Rows : PassFixture {
  Value* x = input({10, 4}, DType::float32, {"n"});
  Value* labels = add_ints("labels", {Dim::symbol("n")});
  Value* logits = b.op("MatMul", {x, weights({4, 3})});

  Rows() { feeds.emplace_back(labels_of(10, 10)); }

  Value* add_ints(std::string_view name, Shape shape) {
    Value* v = graph.add_value(name, Type::tensor(DType::int64, std::move(shape)));
    graph.inputs.push_back(v);
    return v;
  }

  void add_loss(Value* by) { output(b.op("SoftmaxCrossEntropyLoss", {logits, by}, {{"ignore_index", kIgnored}})); }

  DataLooker looker(const SessionOptions& options = {}) { return DataLooker(graph, options, kPassesOfTest); }

  DataChoice look(const DataLooker& looker, std::int64_t labelled, std::int64_t total) {
    feeds[0] = random({total, 4});
    feeds[1] = labels_of(labelled, total);
    return looker.look(feeds);
  }
};

TEST(DataChoice, IsMadeByTheShareOfRows) {
  Rows f;
  f.add_loss(f.labels);
  const DataLooker looker = f.looker();
  ASSERT_TRUE(looker.has_choice());
  for (std::int64_t labelled : {0, 1, 8, 9, 10, 5}) {
    const DataChoice choice = f.look(looker, labelled, 10);
    EXPECT_EQ(choice.passes, labelled < 9 ? Names{"skip_ignored_labels"} : Names{}) << labelled;
    ASSERT_EQ(choice.densities.size(), 1U);
    EXPECT_EQ(choice.densities[0].needed, labelled);
    EXPECT_EQ(choice.densities[0].total, 10);
    EXPECT_EQ(choice.densities[0].input, "labels");
    EXPECT_EQ(choice.densities[0].ignored, kIgnored);
  }
  EXPECT_EQ(f.look(looker, 899, 1000).passes.size(), 1U);
  EXPECT_EQ(f.look(looker, 900, 1000).passes.size(), 0U);
  EXPECT_EQ(f.look(looker, 0, 0).passes, Names{}) << "a batch of nothing is dense";
}

TEST(DataChoice, LeavesTheGraphAlone) {
  Rows f;
  f.add_loss(f.labels);
  const std::string before = print(f.graph);
  const DataLooker looker = f.looker();
  EXPECT_EQ(print(f.graph), before);
}

TEST(DataChoice, CanBeSwitchedOff) {
  Rows f;
  f.add_loss(f.labels);
  EXPECT_FALSE(f.looker({.optimize = false}).has_choice());
  EXPECT_FALSE(f.looker({.sparse_threshold = 0}).has_choice());
  EXPECT_FALSE(f.looker({.disabled_passes = {"skip_ignored_labels"}}).has_choice());
  EXPECT_EQ(f.look(f.looker({.sparse_threshold = 0}), 1, 10).densities.size(), 0U);
  EXPECT_EQ(f.look(f.looker({.sparse_threshold = 0.05}), 1, 10).passes, Names{});
}

TEST(DataChoice, CostsNoProduct) {
  Rows f;
  Value* guessed = f.b.op("ArgMax", {f.b.op("MatMul", {f.x, f.weights({4, 3})})},
                          {{"axis", std::int64_t{1}}, {"keepdims", std::int64_t{0}}});
  f.add_loss(guessed);
  const DataLooker looker = f.looker();
  EXPECT_FALSE(looker.has_choice());
  ASSERT_EQ(looker.reports().size(), 2U);
  EXPECT_NE(looker.reports()[0].what.find("follows from [MatMul"), std::string::npos) << looker.reports()[0].what;
}

TEST(DataChoice, OneLossWithLabelsIsEnough) {
  Rows f;
  f.add_loss(f.labels);
  f.add_loss(f.b.op("Abs", {f.labels}));  // where none is ignored
  const DataLooker looker = f.looker();
  const DataChoice choice = f.look(looker, 3, 10);
  ASSERT_EQ(choice.densities.size(), 2U);
  EXPECT_EQ(choice.densities[0].needed + choice.densities[1].needed, 13);
  EXPECT_EQ(choice.passes.size(), 1U);
}

TEST(DataChoice, PaddingBringsLabels) {
  Rows f;
  f.add_loss(f.labels);
  f.add_ints("mask", {Dim::symbol("b"), Dim::symbol("l")});
  f.feeds.emplace_back();
  const DataLooker looker = f.looker();
  auto choose = [&](std::int64_t labelled, std::int64_t seen) {  // of 2 sequences of 10 tokens
    Tensor mask(DType::int64, {2, 10});
    for (std::int64_t i = 0; i < 20; ++i) mask.as<std::int64_t>()[i] = i % 10 < seen ? 1 : 0;
    f.feeds[2] = mask;
    return f.look(looker, labelled, 20);
  };
  EXPECT_EQ(choose(20, 10).passes, Names{});
  EXPECT_EQ(choose(12, 10).passes, Names{"skip_ignored_labels"});
  EXPECT_EQ(choose(12, 5).passes, (Names{"skip_ignored_labels", "skip_padding"}));
  const DataChoice choice = choose(11, 4);  // one label in the second sequence
  ASSERT_EQ(choice.densities.size(), 3U);
  const std::vector<RowDensity> told = with_sequences(choice);
  EXPECT_EQ(told[2].input, "mask");
  EXPECT_EQ(told[2].per_sequence, (std::vector<std::int64_t>{10, 4}));
  EXPECT_EQ(told[2].needed, 14);
  EXPECT_EQ(told[2].total, 20);
  EXPECT_EQ(f.looker({.disabled_passes = {"skip_ignored_labels"}}).look(f.feeds).passes, Names{"skip_padding"});
}

TEST(DataChoice, AllocatesNoMoreForMoreRows) {
  Rows f;
  f.add_loss(f.labels);
  const DataLooker looker = f.looker();
  auto allocations = [&](std::int64_t labelled) {
    f.feeds[1] = labels_of(labelled, 10);
    looker.look(f.feeds);
    const std::int64_t before = allocation_count();
    looker.look(f.feeds);
    return allocation_count() - before;
  };
  const std::int64_t few = allocations(2);
  EXPECT_LT(few, 50);
  EXPECT_LE(allocations(9), few);
}

TEST(DataChoice, FromSeveralThreads) {
  Rows f;
  f.add_loss(f.labels);
  const DataLooker looker = f.looker();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (std::int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::int64_t i = 0; i < 50; ++i) {
        const std::int64_t total = 1 + (7 * i + t) % 40;
        const std::int64_t labelled = (3 * i + t) % (total + 1);
        std::vector<RuntimeValue> feeds = {Tensor(DType::float32, {total, 4}), labels_of(labelled, total)};
        const DataChoice choice = looker.look(feeds);
        wrong += choice.densities[0].needed != labelled || choice.passes.empty() != (10 * labelled >= 9 * total);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace backpass
