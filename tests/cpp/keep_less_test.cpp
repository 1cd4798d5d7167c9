// Gradients of random networks, with what keep_less computes again and without: the same bits, in less memory.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>

#include "gradient/reverse.hpp"
#include "graph/halves.hpp"
#include "pass_testing.hpp"
#include "passes/manager.hpp"
#include "support/parallel.hpp"
#include "support/random_seed.hpp"

namespace backpass {
namespace {

constexpr std::int64_t kRows = 48;
constexpr std::int64_t kWidth = 256;

/// A network of layers that are chosen at random, and its gradients. The same number gives the same network.
class RandomNetwork : public PassFixture {
 public:
  explicit RandomNetwork(unsigned number, bool has_symbol = true) {
    generator.seed(number);
    values_.push_back(input({kRows, kWidth}, DType::float32, {has_symbol ? "n" : ""}));
    Tensor yes(DType::boolean, {});
    *yes.as<bool>() = true;
    train_ = b.constant(yes);
    ratio_ = b.constant(Tensor::scalar_float(0.25F));
    const std::size_t layers = 3 + pick(18);
    for (std::size_t i = 0; i < layers; ++i) values_.push_back(layer());
    output(b.op("ReduceMean", {values_.back(), b.ints({-1})}));
    if (pick(2) == 0) output(values_[values_.size() / 2]);
    std::vector<Value*> outputs = graph.outputs;
    std::vector<Value*> wrt = graph.inputs;
    std::vector<Value*> seeds;
    for (Value* y : outputs) seeds.push_back(b.op("Identity", {y}));  // no constants, which would be folded
    const std::vector<Value*> gradients = add_gradients(graph, outputs, seeds, wrt);
    graph.first_gradient = outputs.size();
    graph.gradient_count = gradients.size();
    graph.outputs.insert(graph.outputs.end(), gradients.begin(), gradients.end());
  }

  /// Rewrites and plans, and gives the peak.
  void plan(const std::vector<std::string>& disabled, std::int64_t& peak) {
    PassManager manager({.disabled = disabled, .verify = true}, kEveryPass);
    manager.run(graph, Side::after);
    manager.lower(graph);
    for (const Report& report : manager.reports()) {
      if (report.pass != "keep_less") continue;
      ++repeated;
      saved += std::strtoll(report.bytes_saved.c_str(), nullptr, 10);  // the number, where there are no symbols
    }
    program_ = make_program(graph);
    executable_ = std::make_unique<Executable>(*program_, 1, nullptr);
    peak = executable_->binding_for(feeds)->report.peak_bytes;
  }

  /// Outputs and gradients, and the peak of the plan.
  std::vector<Tensor> trained(const std::vector<std::string>& disabled, int threads, std::int64_t& peak) {
    plan(disabled, peak);
    const ThreadScope scope(threads);
    const RandomScope random(RandomRun{5, 3});
    std::vector<Tensor> results;
    for (const RuntimeValue& v : executable_->run(feeds)) results.push_back(v.tensor);
    return results;
  }

  /// Bytes of what the plan's first half computes and its second half reads, but for outputs.
  std::int64_t kept_bytes() {
    const NodeSet later = second_half(graph);
    std::set<const Value*> kept;
    for (const Node* node : graph.nodes()) {
      if (later.count(node) == 0 || reads_extents_only(*node)) continue;
      for_each_read(*node, [&](const Value* v) {
        const Node* producer = memory_of(v)->producer;
        if (producer != nullptr && later.count(producer) == 0) kept.insert(memory_of(v));
      });
    }
    for (const Value* v : graph.outputs) kept.erase(memory_of(v));
    const auto binding = executable_->binding_for(feeds);
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < program_->values.size(); ++i) {
      if (kept.count(program_->values[i]) != 0) bytes += static_cast<std::int64_t>(binding->values[i].bytes());
    }
    return bytes;
  }

  int repeated = 0;
  std::int64_t saved = 0;

 private:
  std::size_t pick(std::size_t count) { return generator() % count; }
  Value* any() { return values_[values_.size() - 1 - pick(std::min<std::size_t>(values_.size(), 4))]; }
  Value* parameter(Dims dims) { return input(std::move(dims)); }

  Value* layer() {
    static const char* const kUnary[] = {"Relu", "Tanh", "Sigmoid", "Gelu", "Sin", "Softplus", "Neg", "Abs"};
    static const char* const kBinary[] = {"Add", "Mul", "Sub", "Max"};
    Value* x = any();
    switch (pick(12)) {
      case 0:
      case 1:
        return b.op("MatMul", {x, parameter({kWidth, kWidth})});
      case 2:
        return b.op("LayerNormalization", {x, parameter({kWidth}), parameter({kWidth})});
      case 3:
        return b.op("Softmax", {x});
      case 4:
        return b.op("Dropout", {x, ratio_, train_});
      case 5:
        return b.op(kBinary[pick(4)], {x, any()});
      case 6:
        return b.op("Mul", {x, parameter({1, kWidth})});
      case 7:
        return b.op("Sub", {x, b.op("ReduceMean", {x, b.ints({-1})})});
      case 8: {
        Value* heads = b.op("Reshape", {x, b.ints({-1, 4, kWidth / 4})});
        return b.op("Reshape", {b.op(kUnary[pick(8)], {heads}), b.ints({-1, kWidth})});
      }
      case 9: {
        Value* wide = b.op("MatMul", {x, parameter({kWidth, 4 * kWidth})});
        Value* inner = b.op(kUnary[pick(8)], {b.op("Add", {wide, parameter({4 * kWidth})})});
        return b.op("MatMul", {inner, parameter({4 * kWidth, kWidth})});
      }
      case 10: {
        Value* gate = b.op("Slice", {x, b.ints({0}), b.ints({kWidth / 2}), b.ints({-1})});
        Value* rest = b.op("Slice", {x, b.ints({kWidth / 2}), b.ints({kWidth}), b.ints({-1})});
        return b.op("Concat", {b.op("Mul", {b.op("Sigmoid", {gate}), rest}), gate}, {{"axis", std::int64_t{1}}});
      }
      default:
        return b.op(kUnary[pick(8)], {x});
    }
  }

  std::unique_ptr<Program> program_;
  std::unique_ptr<Executable> executable_;
  std::vector<Value*> values_;
  Value* train_ = nullptr;
  Value* ratio_ = nullptr;
};

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.dims() == b.dims() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

TEST(KeepLess, GradientsHaveTheSameBits) {
  int repeated = 0;
  std::int64_t saved = 0;
  for (unsigned number = 0; number < 40; ++number) {
    SCOPED_TRACE(number);
    std::int64_t without = 0;
    const std::vector<Tensor> expected = RandomNetwork(number).trained({"keep_less"}, 1, without);
    for (int threads : {1, 2}) {
      RandomNetwork network(number);
      std::int64_t with = 0;
      const std::vector<Tensor> found = network.trained({}, threads, with);
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) ASSERT_TRUE(same_bits(found[i], expected[i])) << "output " << i;
      repeated += network.repeated;
      saved += without - with;
    }
  }
  EXPECT_GT(repeated, 100);
  EXPECT_GT(saved, 0);
}

/// BACKPASS_RANDOM_GRAPHS says how many, where more time is to be spent.
unsigned graph_count() {
  const char* text = std::getenv("BACKPASS_RANDOM_GRAPHS");
  return text == nullptr ? 100 : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

TEST(KeepLess, NeverNeedsMoreMemory) {
  for (unsigned number = 0; number < graph_count(); ++number) {
    std::int64_t without = 0;
    std::int64_t with = 0;
    RandomNetwork(number).plan({"keep_less"}, without);
    RandomNetwork(number).plan({}, with);
    EXPECT_LE(with, without + without / 50) << "network " << number;
  }
}

TEST(KeepLess, ReportsSayWhatThePlanSaves) {
  std::int64_t saved = 0;
  for (unsigned number = 0; number < graph_count() / 3; ++number) {
    std::int64_t peak = 0;
    RandomNetwork without(number, false);
    without.plan({"keep_less"}, peak);
    RandomNetwork with(number, false);
    with.plan({}, peak);
    EXPECT_EQ(with.saved, without.kept_bytes() - with.kept_bytes()) << "network " << number;
    EXPECT_GE(with.saved, 0) << "network " << number;
    saved += with.saved;
  }
  EXPECT_GT(saved, 0);
}

/// Convolutions over images of few channels, then of many: the first is next to nothing of the whole.
struct Stem : PassFixture {
  Stem() {
    Value* x = b.op("Tanh", {b.op("Conv", {input({4, 3, 16, 16}), input({64, 3, 3, 3})}, {{"pads", pads()}})});
    for (int i = 0; i < 11; ++i) x = b.op("Tanh", {b.op("Conv", {x, input({64, 64, 3, 3})}, {{"pads", pads()}})});
    output(b.op("ReduceMean", {b.op("Sin", {x})}, {{"keepdims", std::int64_t{0}}}));
    const std::vector<Value*> weights(graph.inputs.begin() + 1, graph.inputs.end());
    std::vector<Value*> gradients = add_gradients(graph, graph.outputs, std::vector<Value*>{nullptr}, weights);
    graph.first_gradient = 1;
    graph.gradient_count = gradients.size();
    graph.outputs.insert(graph.outputs.end(), gradients.begin(), gradients.end());
  }

  static std::vector<std::int64_t> pads() { return {1, 1, 1, 1}; }
};

TEST(KeepLess, TheFirstConvolutionIsRepeatedOnce) {
  Stem network;
  const std::vector<Tensor> before = network.run_planned();
  network.apply(keep_less);
  const std::vector<std::string> operators = network.operators();
  EXPECT_EQ(std::count(operators.begin(), operators.end(), "Conv"), 13);
  const std::vector<Tensor> after = network.run_planned();
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(same_bits(before[i], after[i])) << "output " << i;
}

/// h = h + tanh(h + w), as often as wanted: each sum follows from those before it.
struct Residuals : PassFixture {
  explicit Residuals(int length) {
    Value* h = b.op("MatMul", {input({kRows, kWidth}), input({kWidth, kWidth})});
    std::vector<Value*> inner;
    for (int i = 0; i < length; ++i) {
      inner.push_back(b.op("MatMul", {h, input({kWidth, kWidth})}));
      h = b.op("Add", {h, b.op("Tanh", {inner.back()})});
    }
    output(b.op("ReduceSum", {h, b.ints({0, 1})}));
    std::vector<Value*> gradients = add_gradients(graph, graph.outputs, std::vector<Value*>{nullptr}, graph.inputs);
    graph.first_gradient = 1;
    graph.gradient_count = gradients.size();
    graph.outputs.insert(graph.outputs.end(), gradients.begin(), gradients.end());
  }
};

TEST(KeepLess, LongChainsAreNotRepeatedFromTheirBeginning) {
  Residuals network(40);
  const std::size_t before = network.graph.nodes().size();
  network.apply(keep_less);
  EXPECT_LT(network.graph.nodes().size(), before + 40 * 12);
}

}  // namespace
}  // namespace backpass
