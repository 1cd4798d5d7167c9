// Training within a memory budget: the same bits, the peak that was asked for.
#include "plan/recompute.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "expect_error.hpp"
#include "graph_text.hpp"
#include "model/training_graph.hpp"
#include "onnx_io/writer.hpp"
#include "plan/repeat.hpp"
#include "training/module_session.hpp"
#include "training/step_model.hpp"
#include "training_testing.hpp"

namespace backpass {
namespace {

using Values = std::vector<RuntimeValue>;
using Names = std::vector<std::string>;

constexpr std::int64_t kWidth = 32, kRows = 8;

/// Layers drawn at random over x: [n, kRows, kWidth], all of that shape; parameters are inputs.
class RandomNetwork {
 public:
  explicit RandomNetwork(unsigned seed, int layers, bool has_statistics = true)
      : random_(seed), has_statistics_(has_statistics) {
    model_ = onnx_io::make_model();
    model_.opset_import = {{"", 23}};
    model_.graph.input = {make_info("x", {-1, kRows, kWidth})};
    model_.graph.initializer = {onnx_io::make_tensor<float>("ratio", DType::float32, {}, {0.3F}),
                                onnx_io::make_tensor<std::uint8_t>("yes", DType::boolean, {}, {1})};
    values_ = {"x"};
    for (int i = 0; i < layers; ++i) add_layer();
    add("Mul", {values_.back(), values_.back()});
    add("ReduceMean", {values_.back()}, {make_int("keepdims", 0)});
    model_.graph.output = {make_info(values_.back(), {})};
    for (const std::string& name : statistics_) model_.graph.output.push_back(make_info(name, {kRows}));
  }

  ModuleSession session(const SessionOptions& options) const {
    const auto bytes = std::make_shared<const std::string>(onnx_io::write_model(model_));
    return {*bytes, bytes, trained_, options, statistics_};
  }

  const onnx_io::ModelProto& model() const { return model_; }

  TrainingModels training_models() const {
    return build_training_models(model_, {trained_, {}, {model_.graph.output[0].name}});
  }

  Values feeds(std::int64_t n) const {
    Values feeds;
    std::mt19937 numbers(7);
    for (const onnx_io::ValueInfoProto& info : model_.graph.input) {
      Dims dims;
      for (const onnx_io::DimProto& d : *info.type.shape) dims.push_back(d.value.value_or(n));
      Tensor t(DType::float32, dims);
      const float scale = dims.size() == 3 ? 1.0F : 0.3F;
      std::uniform_real_distribution<float> uniform(info.name[0] == 'x' ? -scale : 0.01F, scale);
      for (std::int64_t i = 0; i < t.size(); ++i) t.as<float>()[i] = uniform(numbers);
      feeds.emplace_back(t);
    }
    return feeds;
  }

 private:
  std::string pick() { return values_[random_() % values_.size()]; }

  std::string parameter(const std::vector<std::int64_t>& dims, bool is_trained = true) {
    std::string name = "p" + std::to_string(model_.graph.input.size());
    model_.graph.input.push_back(make_info(name, dims));
    if (is_trained) trained_.push_back(name);
    return name;
  }

  void add(const std::string& op, std::vector<std::string> inputs, std::vector<onnx_io::AttributeProto> attributes = {},
           std::vector<std::string> more_outputs = {}) {
    const std::string name = "v" + std::to_string(model_.graph.node.size());
    more_outputs.insert(more_outputs.begin(), name);
    model_.graph.node.push_back(make_node(op, std::move(inputs), std::move(more_outputs), std::move(attributes)));
    if (random_() % 2 == 0) model_.graph.node.back().name.clear();
    values_.push_back(name);
  }

  void add_layer() {
    const std::string x = values_.back();
    switch (random_() % 8) {
      case 0:
      case 1:
        add("MatMul", {x, parameter({kWidth, kWidth})});
        return add("Add", {values_.back(), parameter({kWidth})});
      case 2:
        return add(std::vector<std::string>{"Tanh", "Gelu", "Sigmoid", "Softmax"}[random_() % 4], {x});
      case 3:
        return add("Dropout", {x, "ratio", "yes"});
      case 4:
        return add("LayerNormalization", {x, parameter({kWidth}), parameter({kWidth})});
      case 5: {
        if (!has_statistics_) return add("Tanh", {x});
        const std::string name = "s" + std::to_string(model_.graph.node.size());
        statistics_.insert(statistics_.end(), {name + "_mean", name + "_var"});
        return add("BatchNormalization",
                   {x, parameter({kRows}), parameter({kRows}), parameter({kRows}, false), parameter({kRows}, false)},
                   {make_int("training_mode", 1)}, {name + "_mean", name + "_var"});
      }
      case 6:
        return add("Attention", {x, pick(), pick()}, {make_int("q_num_heads", 2), make_int("kv_num_heads", 2)});
      default:
        return add("Add", {x, pick()});
    }
  }

  std::mt19937 random_;
  bool has_statistics_;
  onnx_io::ModelProto model_;
  Names values_, trained_, statistics_;
};

/// All outputs, then all gradients.
Values one_step(ModuleSession& session, const Values& feeds) {
  Values found;
  auto pending = session.forward(feeds, found, 5);
  Values seeds(found.size());
  seeds[0] = floats({}, {1});
  for (RuntimeValue& gradient : session.backward(pending, seeds)) found.push_back(std::move(gradient));
  return found;
}

void expect_same_bits(const Values& a, const Values& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].is_tensor(), b[i].is_tensor()) << i;
    if (!a[i].is_tensor()) continue;
    ASSERT_EQ(a[i].tensor.dims(), b[i].tensor.dims()) << i;
    EXPECT_EQ(std::memcmp(a[i].tensor.data(), b[i].tensor.data(), a[i].tensor.bytes()), 0) << i;
  }
}

std::string print_reports(ModuleSession& session) {
  std::string lines;
  for (const Report& report : session.pass_reports()) lines += report.pass == "recompute" ? report.what + "\n" : "";
  return lines;
}

/// The smallest share that the message asks for.
double least_share(const std::string& message) {
  const std::string_view before = "expected at least ";
  return std::stod(message.substr(message.find(before) + before.size()));
}

TEST(Recompute, SameBitsWithinTheBudget) {
  int recomputed = 0;
  for (unsigned seed = 0; seed < 24; ++seed) {
    const RandomNetwork network(seed, 12);
    const Values feeds = network.feeds(4);
    ModuleSession plain = network.session({});
    const Values expected = one_step(plain, feeds);
    const auto peak = static_cast<double>(plain.plan(feeds).peak_bytes);
    for (double share : {0.9, 0.7, 0.5, 0.3}) {
      SCOPED_TRACE(concat("seed ", seed, " share ", share));
      auto run = [&](double allowed) {
        ModuleSession session = network.session({.max_memory = allowed});
        const Values found = one_step(session, feeds);
        EXPECT_LE(static_cast<double>(session.plan(feeds).peak_bytes), allowed * peak);
        expect_same_bits(expected, found);
        for (const Report& report : session.pass_reports()) recomputed += report.pass == "recompute" ? 1 : 0;
      };
      try {
        run(share);
      } catch (const InvalidInput& error) {
        const double least = least_share(error.what());
        EXPECT_GT(least, share);
        if (least < 1) run(least);
      }
    }
  }
  EXPECT_GT(recomputed, 100);
}

TEST(Recompute, ImpossibleBudgets) {
  const RandomNetwork network(3, 6);
  ModuleSession session = network.session({.max_memory = 100});
  expect_error<InvalidInput>([&] { one_step(session, network.feeds(2)); },
                             {"max_memory: got 100 bytes, expected at least ", "; use a smaller batch"});
  ModuleSession share = network.session({.max_memory = 0.01});
  expect_error<InvalidInput>([&] { one_step(share, network.feeds(2)); },
                             {"max_memory: got 0.01 of ", " bytes, expected at least 0."});
  expect_error<InvalidInput>([&] { network.session({.max_memory = -2}); }, {"max_memory: got -2, expected"});
}

TEST(Recompute, ForwardAloneHasNothingToGiveUp) {
  const RandomNetwork network(3, 6);
  ModuleSession share = network.session({.max_memory = 0.01});
  ModuleSession plain = network.session({});
  const Values feeds = network.feeds(2);
  expect_same_bits(plain.forward(feeds, 5), share.forward(feeds, 5));
  ModuleSession bytes = network.session({.max_memory = 100});
  expect_error<InvalidInput>([&] { bytes.forward(feeds, 5); }, {"max_memory: got 100 bytes, expected at least "});
}

TEST(Recompute, InferenceSaysWhatItNeeds) {
  const onnx_io::ModelProto model = RandomNetwork(3, 6).model();
  const auto bytes = std::make_shared<const std::string>(onnx_io::write_model(model));
  Feeds feeds;
  const Values values = RandomNetwork(3, 6).feeds(2);
  for (std::size_t i = 0; i < values.size(); ++i) feeds.emplace_back(model.graph.input[i].name, values[i]);
  const InferenceSession plain(*bytes, bytes);
  const auto needed = plain.plan(feeds).peak_bytes;
  EXPECT_NO_THROW(InferenceSession(*bytes, bytes, {.max_memory = static_cast<double>(needed)}).run({}, feeds));
  expect_error<InvalidInput>([&] { InferenceSession(*bytes, bytes, {.max_memory = 100}).run({}, feeds); },
                             {"max_memory: got 100 bytes, expected at least ", std::to_string(needed)});
}

TEST(Recompute, DecidesAgainForLargerExtents) {
  const RandomNetwork network(5, 12);
  ModuleSession plain = network.session({});
  const auto small = static_cast<double>(plain.plan(network.feeds(2)).peak_bytes);
  ModuleSession session = network.session({.max_memory = 1.5 * small});
  expect_same_bits(one_step(plain, network.feeds(2)), one_step(session, network.feeds(2)));
  EXPECT_EQ(session.plan(network.feeds(2)).peak_bytes, static_cast<std::int64_t>(small));
  for (std::int64_t n : {3, 2, 3}) {
    expect_same_bits(one_step(plain, network.feeds(n)), one_step(session, network.feeds(n)));
    EXPECT_LE(static_cast<double>(session.plan(network.feeds(n)).peak_bytes), 1.5 * small);
  }
}

TEST(Recompute, PassesUnderWayKeepTheirPlan) {
  const RandomNetwork network(5, 12);
  ModuleSession plain = network.session({});
  ModuleSession session = network.session({.max_memory = 0.9});
  const Values small = network.feeds(2), large = network.feeds(4);
  auto finish = [](ModuleSession& of, auto pending, std::size_t outputs) {
    Values seeds(outputs);
    seeds[0] = floats({}, {1});
    return of.backward(pending, seeds);
  };
  Values outputs, later;
  auto first = session.forward(small, outputs, 5);
  auto second = session.forward(large, later, 5);
  const Values of_second = finish(session, second, later.size());
  const Values of_first = finish(session, first, outputs.size());
  outputs.insert(outputs.end(), of_first.begin(), of_first.end());
  later.insert(later.end(), of_second.begin(), of_second.end());
  expect_same_bits(one_step(plain, small), outputs);
  expect_same_bits(one_step(plain, large), later);
}

/// Gradients of a step that replaces and one that adds.
std::vector<Tensor> two_steps(const RandomNetwork& network, const SessionOptions& options) {
  StepModel model(
      network.training_models().training, [](const std::string& name) { return name[0] == 'p'; }, options);
  Values feeds = network.feeds(4);
  std::vector<Tensor> parameters, gradients;
  for (std::size_t i = 1; i < feeds.size(); ++i) parameters.push_back(feeds[i].tensor);
  for (const ParameterInfo& info : model.parameter_infos()) gradients.emplace_back(info.dtype, info.dims);
  feeds.resize(1);
  RandomSource random;
  random.restore({3, 0});
  model.run(feeds, parameters, StepModel::Gradients::replace, gradients, {}, random);
  const double first = static_cast<double>(model.plan(feeds, parameters, gradients).peak_bytes);
  model.run(feeds, parameters, StepModel::Gradients::add, gradients, {}, random);
  EXPECT_TRUE(options.max_memory <= 1 || first <= options.max_memory);
  EXPECT_TRUE(options.max_memory == 0 || !model.pass_reports().empty());
  return gradients;
}

TEST(Recompute, StepModelsToo) {
  for (unsigned seed : {31U, 32U, 33U}) {
    const RandomNetwork network(seed, 16, false);
    const std::vector<std::string> off{"keep_less"};  // it would leave nothing to gain in networks of this size
    const std::vector<Tensor> plain = two_steps(network, {.disabled_passes = off});
    const std::vector<Tensor> found = two_steps(network, {.disabled_passes = off, .max_memory = 0.85});
    ASSERT_EQ(plain.size(), found.size());
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_EQ(std::memcmp(plain[i].data(), found[i].data(), plain[i].bytes()), 0) << seed << " " << i;
    }
  }
}

TEST(Recompute, WhatIsAskedFor) {
  const RandomNetwork network(5, 16);
  const Values feeds = network.feeds(4);
  ModuleSession plain = network.session({});
  const Values expected = one_step(plain, feeds);
  for (const Names& asked : {Names{"cheap"}, Names{"blocks"}, Names{"Tanh+Gelu+:1:-1", "Dropout:1:1", "Sin:0:2"}}) {
    ModuleSession session = network.session({.recompute = asked});
    expect_same_bits(expected, one_step(session, feeds));
    EXPECT_NE(print_reports(session), "") << asked[0];
  }
  for (const char* wrong : {"Gelu", "Gelu:1", "Gelu:3:1", "Gelu:1:-2", "Gelu:1:x", ""}) {
    expect_error<InvalidInput>([&] { network.session({.recompute = {wrong}}); },
                               {"recompute: got ", wrong, "expected 'cheap', 'blocks', or operators"});
  }
}

/// a -> b -> c, each read by its gradient; d is random.
TEST(Recompute, CopiesStandBeforeTheirFirstReader) {
  std::unique_ptr<Graph> graph = parse_graph(R"(graph 'g' (%x: float32[4], %dy: float32[4])
    %a: float32[4] = Exp(%x)
    %b: float32[4] = Tanh(%a) 'named'
    %c: float32[4] = Sin(%b)
    %p: float32[4] = Mul(%dy, %b)
    %q: float32[4] = Mul(%p, %a)
    return %c, %q)");
  NodeSet forward;
  for (std::size_t i = 0; i < 3; ++i) forward.insert(graph->nodes()[i]);
  EXPECT_EQ(nodes_to_repeat(*graph, forward).size(), 2U);
  const std::unique_ptr<Graph> again = with_repeats(*graph, forward, {.is_kept = [](const Value*) { return false; }});
  EXPECT_EQ(verify(*again), std::vector<std::string>{});
  std::string ops;
  for (const Node* node : again->nodes()) ops += node->op + " ";
  EXPECT_EQ(ops, "Exp Tanh Sin Exp Tanh Mul Mul ");
  EXPECT_EQ(again->nodes()[3]->name, "a");
  EXPECT_EQ(again->nodes()[4]->name, "named");
  EXPECT_EQ(again->nodes()[6]->inputs[1]->name, "a_again");
}

/// The same, with copies for single readers: what two of them need is made twice.
TEST(Recompute, CopiesForEachReader) {
  std::unique_ptr<Graph> graph = parse_graph(R"(graph 'g' (%x: float32[4], %dy: float32[4])
    %a: float32[4] = Exp(%x)
    %b: float32[4] = Tanh(%a) 'named'
    %c: float32[4] = Sin(%b)
    %p: float32[4] = Mul(%dy, %b)
    %q: float32[4] = Mul(%p, %a)
    return %c, %q)");
  NodeSet forward;
  for (std::size_t i = 0; i < 3; ++i) forward.insert(graph->nodes()[i]);
  auto ops = [&](Fate fate, int first_epoch) {
    Repeats repeats{.is_kept = [](const Value*) { return false; },
                    .fate = [=](const Node*) { return fate; },
                    .epoch = [=](const Node* node) { return node->outputs[0]->name == "p" ? first_epoch : 0; }};
    const std::unique_ptr<Graph> again = with_repeats(*graph, forward, repeats);
    EXPECT_EQ(verify(*again), std::vector<std::string>{});
    std::string found;
    for (const Node* node : again->nodes()) found += node->op + " ";
    return found;
  };
  EXPECT_EQ(ops(Fate::made_each_time, 0), "Exp Tanh Sin Exp Tanh Mul Mul ");
  EXPECT_EQ(ops(Fate::made_each_time, 1), "Exp Tanh Sin Exp Tanh Mul Exp Mul ");
  EXPECT_EQ(ops(Fate::made_for_reader, 0), "Exp Tanh Sin Exp Tanh Mul Exp Mul ");
}

/// A chain of pointwise steps with a product between each: the products are kept.
Outline chain(int layers) {
  Outline outline;
  const int steps = 4 * layers;  // forward: product, pointwise; backward: the same the other way around
  outline.steps.resize(static_cast<std::size_t>(steps));
  outline.values.resize(static_cast<std::size_t>(steps) + 1);
  for (int s = 0; s < steps; ++s) {
    Outline::Step& step = outline.steps[static_cast<std::size_t>(s)];
    step.runs = true;
    step.is_forward = s < 2 * layers;
    step.is_repeatable = true;
    step.cost = s % 2 == 0 ? 1000 : 1;
    step.inputs = {s};
    step.outputs = {s + 1};
    if (!step.is_forward) step.inputs.push_back(4 * layers - 1 - s);
  }
  for (int v = 0; v <= steps; ++v) {
    Outline::Value& value = outline.values[static_cast<std::size_t>(v)];
    value.bytes = v == 0 ? 0 : 64;
    value.producer = v - 1;
    value.root = v;
    value.is_choosable = v > 0 && v < 2 * layers;
    value.is_kept_to_the_end = v == steps;
  }
  return outline;
}

/// However long the chain, its values can be made again from the input, one after the other.
TEST(Recompute, LongChainsNeedNoMoreThanOneStepDoes) {
  for (int layers : {4, 16}) {
    const Outline outline = chain(layers);
    const RecomputeResult least =
        choose_recomputation(outline, 0, [&](const Fates& fates) { return Rehearsal(outline).run(fates).peak; });
    EXPECT_LE(least.chosen.peak, 4U * 64) << layers;
  }
}

TEST(Recompute, GivesUpWhatIsCheap) {
  const Outline outline = chain(8);
  Rehearsal rehearsal(outline);
  const Rehearsal::Result all = rehearsal.run(keep_all(outline));
  const RecomputeResult result = choose_recomputation(
      outline, all.peak * 6 / 10, [&](const Fates& fates) { return Rehearsal(outline).run(fates).peak; });
  ASSERT_TRUE(result.fits);
  EXPECT_LE(result.chosen.peak, all.peak * 6 / 10);
  EXPECT_LT(result.chosen.cost, all.cost + 16);
  const RecomputeResult none =
      choose_recomputation(outline, 64, [&](const Fates& fates) { return Rehearsal(outline).run(fates).peak; });
  EXPECT_FALSE(none.fits);
  EXPECT_LT(none.chosen.peak, all.peak / 2);
}

}  // namespace
}  // namespace backpass
