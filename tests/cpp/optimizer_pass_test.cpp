#include "training/optimizer_pass.hpp"

#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>

#include "expect_error.hpp"
#include "graph/evaluate.hpp"
#include "kernel_testing.hpp"
#include "support/interruption.hpp"
#include "support/parallel.hpp"

namespace backpass {
namespace {

using Doubles = std::vector<double>;
using Random = std::mt19937;

constexpr Algorithm kAlgorithms[] = {Algorithm::sgd, Algorithm::adam, Algorithm::lamb};

double draw(Random& random, double low, double high) { return std::uniform_real_distribution<>(low, high)(random); }
bool chance(Random& random) { return std::bernoulli_distribution()(random); }

WeightSettings draw_settings(Random& random) {
  WeightSettings s;
  s.rate_scale = chance(random) ? 1 : draw(random, 0.1, 2);
  s.alpha = draw(random, 0.5, 0.95);
  s.beta = draw(random, 0.9, 0.999);
  s.epsilon = draw(random, 1e-8, 1e-3);
  s.weight_decay = chance(random) ? 0 : draw(random, 0.001, 0.2);
  s.correct_bias = chance(random);
  s.decays_after = chance(random);
  s.decays_gradient = chance(random);
  s.max_norm = draw(random, 0.5, 200);
  if (chance(random)) s.ratio_min = draw(random, 0, 0.5);
  if (chance(random)) s.ratio_max = draw(random, 0.6, 3);
  return s;
}

Tensor random_tensor(DType dtype, std::int64_t size, Random& random) {
  Tensor t(dtype, {size});
  for (std::int64_t i = 0; i < size; ++i) {
    const double value = draw(random, -1, 1);
    if (dtype == DType::float32) t.as<float>()[i] = static_cast<float>(value);
    if (dtype == DType::float64) t.as<double>()[i] = value;
  }
  return t;
}

Tensor zeros(DType dtype, std::int64_t size) {
  Tensor t(dtype, {size});
  std::memset(t.mutable_data(), 0, t.bytes());
  return t;
}

Tensor copy(const Tensor& t) {
  Tensor made(t.dtype(), t.dims());
  std::memcpy(made.mutable_data(), t.data(), t.bytes());
  return made;
}

std::vector<Tensor> copies(std::span<const Tensor> tensors) {
  std::vector<Tensor> made;
  for (const Tensor& t : tensors) made.push_back(copy(t));
  return made;
}

/// Weights of an optimizer with their states.
struct Weights {
  std::vector<Tensor> parameters;
  std::vector<std::vector<Tensor>> states;

  Weights(Algorithm algorithm, std::vector<Tensor> values) : parameters(std::move(values)) {
    states.resize(OptimizerPass::state_names(algorithm).size());
    for (std::vector<Tensor>& state : states) {
      for (const Tensor& p : parameters) state.push_back(zeros(p.dtype(), p.size()));
    }
  }
  Doubles flat() const {
    Doubles all;
    auto add = [&](const Tensor& t) {
      const Doubles values = t.to_doubles();
      all.insert(all.end(), values.begin(), values.end());
    };
    for (const Tensor& t : parameters) add(t);
    for (const auto& state : states) {
      for (const Tensor& t : state) add(t);
    }
    return all;
  }
};

std::vector<Tensor> random_tensors(DType dtype, std::span<const std::int64_t> sizes, Random& random) {
  std::vector<Tensor> made;
  for (const std::int64_t size : sizes) made.push_back(random_tensor(dtype, size, random));
  return made;
}

/// The formulas as papers write them, in double and without a thought of speed.
class Reference {
 public:
  Reference(Algorithm algorithm, WeightSettings settings, const Tensor& start)
      : algorithm_(algorithm), s_(settings), w(start.to_doubles()), m(w.size()), v(w.size()) {}

  void step(double rate, int t, double scale, std::optional<double> norm, const Tensor& gradient) {
    Doubles g = gradient.to_doubles();
    const double clip = norm && *norm > s_.max_norm ? s_.max_norm / *norm : 1;
    const bool decays_gradient = s_.decays_gradient || algorithm_ == Algorithm::sgd;
    for (std::size_t i = 0; i < g.size(); ++i) {
      g[i] = g[i] * scale * clip + (decays_gradient ? s_.weight_decay * w[i] : 0);
    }
    const double eta = rate * s_.rate_scale;
    if (algorithm_ == Algorithm::sgd) {
      for (std::size_t i = 0; i < g.size(); ++i) w[i] -= eta * g[i];
    } else {
      const double decay = s_.decays_gradient ? 0 : s_.weight_decay;
      const Doubles direction = update_moments(t, g, algorithm_ == Algorithm::lamb ? decay : 0);
      if (algorithm_ == Algorithm::adam) move(eta, decay, direction);
      if (algorithm_ == Algorithm::lamb) move(eta * ratio(direction), 0, direction);
    }
  }

 private:
  Doubles update_moments(int t, const Doubles& g, double decay) {
    const double ca = s_.correct_bias ? 1 - std::pow(s_.alpha, t) : 1;
    const double cb = s_.correct_bias ? 1 - std::pow(s_.beta, t) : 1;
    Doubles d(g.size());
    for (std::size_t i = 0; i < g.size(); ++i) {
      m[i] = s_.alpha * m[i] + (1 - s_.alpha) * g[i];
      v[i] = s_.beta * v[i] + (1 - s_.beta) * g[i] * g[i];
      const bool after = s_.decays_after && algorithm_ == Algorithm::adam;
      d[i] = after ? std::sqrt(cb) / ca * m[i] / (std::sqrt(v[i]) + s_.epsilon)
                   : m[i] / ca / (std::sqrt(v[i] / cb) + s_.epsilon);
      d[i] += decay * w[i];
    }
    return d;
  }

  void move(double rate, double decay, const Doubles& direction) {
    for (std::size_t i = 0; i < w.size(); ++i) {
      if (!s_.decays_after) w[i] -= rate * decay * w[i];
      w[i] -= rate * direction[i];
      if (s_.decays_after) w[i] -= rate * decay * w[i];
    }
  }

  double ratio(const Doubles& direction) const {
    double weight = 0, towards = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      weight += w[i] * w[i];
      towards += direction[i] * direction[i];
    }
    if (weight == 0 || towards == 0) return 1;
    return std::min(s_.ratio_max, std::max(s_.ratio_min, std::sqrt(weight / towards)));
  }

  Algorithm algorithm_;
  WeightSettings s_;

 public:
  Doubles w, m, v;
};

constexpr std::int64_t kSizes[] = {0, 1, 7, 100, 16384 + 3, 3};

void follow_reference(Algorithm algorithm, DType dtype, Random& random) {
  std::vector<WeightSettings> settings;
  for (std::size_t i = 0; i < std::size(kSizes); ++i) settings.push_back(draw_settings(random));
  const OptimizerPass pass(algorithm, settings);
  Weights weights(algorithm, random_tensors(dtype, kSizes, random));
  std::vector<Reference> wanted;
  for (std::size_t i = 0; i < settings.size(); ++i) wanted.emplace_back(algorithm, settings[i], weights.parameters[i]);
  const double scale = chance(random) ? 1 : draw(random, 0.1, 2);
  const bool clips = chance(random);
  for (int t = 1; t <= 50; ++t) {
    const std::vector<Tensor> gradients = random_tensors(dtype, kSizes, random);
    OptimizerPass::Step step{.rate = 0.01 * draw(random, 0, 1), .step = t, .gradient_scale = scale};
    if (clips) step.norm = std::sqrt(sum_of_squares(gradients, scale));
    pass.run(step, weights.parameters, gradients, weights.states);
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i].step(step.rate, t, scale, step.norm, gradients[i]);
  }
  const double tolerance = dtype == DType::float32 ? 2e-5 : 1e-12;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const Doubles got = weights.parameters[i].to_doubles();
    for (std::size_t k = 0; k < got.size(); ++k) {
      ASSERT_NEAR(got[k], wanted[i].w[k], tolerance * (1 + std::abs(wanted[i].w[k])))
          << "algorithm " << static_cast<int>(algorithm) << ", weight " << i << ", element " << k;
    }
  }
}

TEST(OptimizerPass, FollowsTheFormulasOverFiftySteps) {
  Random random(1);
  for (const Algorithm algorithm : kAlgorithms) {
    for (const DType dtype : {DType::float32, DType::float64}) {
      for (int k = 0; k < 4; ++k) follow_reference(algorithm, dtype, random);
      on_every_target([&] { follow_reference(algorithm, dtype, random); });
    }
  }
}

Doubles trained(Algorithm algorithm, DType dtype, int threads) {
  const ThreadScope scope(threads);
  Random random(2);
  const std::vector<std::int64_t> sizes = {3, 100'003, 0, 1, 40'000, 16384, 5};
  std::vector<WeightSettings> settings;
  for (std::size_t i = 0; i < sizes.size(); ++i) settings.push_back(draw_settings(random));
  Weights weights(algorithm, random_tensors(dtype, sizes, random));
  for (int t = 1; t <= 3; ++t) {
    const std::vector<Tensor> gradients = random_tensors(dtype, sizes, random);
    OptimizerPass::Step step{.rate = 0.1, .step = t};
    step.norm = std::sqrt(sum_of_squares(gradients));
    OptimizerPass(algorithm, settings).run(step, weights.parameters, gradients, weights.states);
  }
  return weights.flat();
}

TEST(OptimizerPass, TheNumberOfThreadsDoesNotMatter) {
  for (const Algorithm algorithm : kAlgorithms) {
    for (const DType dtype : {DType::float32, DType::float64}) {
      EXPECT_EQ(trained(algorithm, dtype, 1), trained(algorithm, dtype, 2));
      EXPECT_EQ(trained(algorithm, dtype, 1), trained(algorithm, dtype, 5));
    }
  }
}

TEST(OptimizerPass, NeighboursDoNotMatter) {
  Random random(8);
  const std::int64_t sizes[] = {20'000, 40'001, 9};
  for (const Algorithm algorithm : kAlgorithms) {
    const std::vector<Tensor> start = random_tensors(DType::float32, sizes, random);
    const std::vector<Tensor> gradients = random_tensors(DType::float32, sizes, random);
    const OptimizerPass pass(algorithm, {draw_settings(random)});
    const OptimizerPass::Step step{.rate = 0.1, .step = 2};
    const Weights together(algorithm, copies(start));
    pass.run(step, together.parameters, gradients, together.states);
    for (std::size_t i = 0; i < start.size(); ++i) {
      const Weights alone(algorithm, {copy(start[i])});
      pass.run(step, alone.parameters, std::span(gradients).subspan(i, 1), alone.states);
      EXPECT_EQ(alone.parameters[0].to_doubles(), together.parameters[i].to_doubles());
    }
  }
}

/// The parts of weights that lie in a range, as tensors of their own: what a process keeps of the states.
std::vector<std::vector<Tensor>> part_of_states(const Weights& weights, ElementRange range) {
  std::vector<std::vector<Tensor>> parts(weights.states.size());
  std::int64_t before = 0;
  for (const Tensor& p : weights.parameters) {
    const std::int64_t begin = std::clamp<std::int64_t>(range.begin - before, 0, p.size());
    const std::int64_t end = std::clamp<std::int64_t>(range.end - before, begin, p.size());
    for (auto& part : parts) part.push_back(zeros(p.dtype(), end - begin));
    before += p.size();
  }
  return parts;
}

/// Both processes of a training with two: each updates its range, and sums are added up between them.
void train_two(Algorithm algorithm, const OptimizerPass& pass, Weights& weights, std::int64_t middle, int steps,
               std::uint32_t seed) {
  const ElementRange ranges[] = {{0, middle}, {middle, INT64_MAX}};
  std::barrier<> both(2);
  std::vector<Doubles> shared(2);
  std::vector<std::int64_t> sizes;
  for (const Tensor& p : weights.parameters) sizes.push_back(p.size());
  auto process = [&](std::size_t rank) {
    const std::vector<std::vector<Tensor>> states = part_of_states(weights, ranges[rank]);
    Random random(seed);
    for (int t = 1; t <= steps; ++t) {
      const std::vector<Tensor> gradients = random_tensors(DType::float64, sizes, random);
      OptimizerPass::Step step{.rate = 0.1, .step = t, .range = ranges[rank]};
      step.add_up = [&](std::span<double> sums) {
        shared[rank].assign(sums.begin(), sums.end());
        both.arrive_and_wait();
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = shared[0][i] + shared[1][i];
        both.arrive_and_wait();
      };
      pass.run(step, weights.parameters, gradients, states);
      if (algorithm != Algorithm::lamb) both.arrive_and_wait();
    }
  };
  std::jthread other(process, 1);
  process(0);
}

TEST(OptimizerPass, RangesTogetherAreTheWhole) {
  const std::int64_t sizes[] = {5, 0, 40'000, 1, 17'000};
  for (const Algorithm algorithm : kAlgorithms) {
    for (const std::int64_t middle : {0, 3, 5, 20'000, 40'005, 40'006, 57'006}) {
      Random random(3);
      std::vector<WeightSettings> settings;
      for (std::size_t i = 0; i < std::size(sizes); ++i) settings.push_back(draw_settings(random));
      const OptimizerPass pass(algorithm, settings);
      const std::vector<Tensor> start = random_tensors(DType::float64, sizes, random);
      Weights whole(algorithm, copies(start)), parts(algorithm, copies(start));
      Random same(4);
      for (int t = 1; t <= 3; ++t) {
        const std::vector<Tensor> gradients = random_tensors(DType::float64, sizes, same);
        pass.run({.rate = 0.1, .step = t}, whole.parameters, gradients, whole.states);
      }
      train_two(algorithm, pass, parts, middle, 3, 4);
      for (std::size_t i = 0; i < std::size(sizes); ++i) {
        const Doubles got = parts.parameters[i].to_doubles(), want = whole.parameters[i].to_doubles();
        if (algorithm != Algorithm::lamb) {
          EXPECT_EQ(got, want);
        }
        for (std::size_t k = 0; k < got.size(); ++k) ASSERT_NEAR(got[k], want[k], 1e-12);
      }
    }
  }
}

TEST(OptimizerPass, NodesGiveItsBits) {
  Random random(5);
  const std::int64_t sizes[] = {1, 100, 16384 + 5};
  for (const Algorithm algorithm : {Algorithm::sgd, Algorithm::adam}) {
    for (int round = 0; round < 20; ++round) {
      std::vector<WeightSettings> settings;
      for (std::size_t i = 0; i < std::size(sizes); ++i) settings.push_back(draw_settings(random));
      const OptimizerPass pass(algorithm, settings);
      const double scale = chance(random) ? 1 : 0.3, rate = draw(random, 0, 0.1);
      const UpdateRule rule = pass.rule(scale).value();
      const std::vector<Tensor> gradients = random_tensors(DType::float32, sizes, random);
      Weights weights(algorithm, random_tensors(DType::float32, sizes, random));
      for (std::size_t i = 0; i < std::size(sizes); ++i) {
        Graph graph;
        std::vector<RuntimeValue> inputs = {Tensor::from<double>(DType::float64, {1}, Doubles{rate}),
                                            Tensor::ints(std::vector<std::int64_t>{3}), copy(weights.parameters[i]),
                                            gradients[i]};
        for (const auto& state : weights.states) inputs.emplace_back(copy(state[i]));
        std::vector<Value*> reads, writes;
        for (const RuntimeValue& value : inputs) reads.push_back(graph.add_value("x", type_of(value)));
        for (std::size_t k = 0; k <= weights.states.size(); ++k) writes.push_back(graph.add_value("y", {}));
        Node* node = graph.add_node(rule.op, reads, writes, "update", "backpass");
        node->attributes = rule.of(i);
        const std::vector<RuntimeValue> results = evaluate_node(*node, inputs);
        Weights one(algorithm, {copy(weights.parameters[i])});
        OptimizerPass(algorithm, {settings[i]})
            .run({.rate = rate, .step = 3, .gradient_scale = scale}, one.parameters, std::span(gradients).subspan(i, 1),
                 one.states);
        EXPECT_EQ(results[0].tensor.to_doubles(), one.parameters[0].to_doubles());
      }
    }
  }
}

TEST(OptimizerPass, LambKeepsElementsWhoseDirectionIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::int64_t bad : {0, 16384 + 1, 40'000}) {
    Random random(6);
    const std::int64_t sizes[] = {40'001};
    std::vector<Tensor> gradients = random_tensors(DType::float32, sizes, random);
    Weights weights(Algorithm::lamb, random_tensors(DType::float32, sizes, random));
    const Tensor before = copy(weights.parameters[0]);
    gradients[0].as<float>()[bad] = bad == 0 ? std::nanf("") : infinity;
    OptimizerPass(Algorithm::lamb, {WeightSettings{}})
        .run({.rate = 0.1, .step = 1}, weights.parameters, gradients, weights.states);
    for (std::int64_t i = 0; i < sizes[0]; ++i) {
      EXPECT_EQ(weights.parameters[0].as<float>()[i] == before.as<float>()[i], i == bad) << i;
      EXPECT_EQ(weights.states[0][0].as<float>()[i] == 0, i == bad);
      EXPECT_TRUE(std::isfinite(weights.parameters[0].as<float>()[i]));
    }
  }
}

TEST(OptimizerPass, NothingInterruptsIt) {
  Random random(10);
  const std::int64_t sizes[] = {100'000};
  const std::vector<Tensor> gradients = random_tensors(DType::float32, sizes, random);
  for (const Algorithm algorithm : kAlgorithms) {
    const Weights weights(algorithm, random_tensors(DType::float32, sizes, random));
    CancelFlag flag;
    flag.set();
    const InterruptionScope scope(&flag, 0);
    const OptimizerPass pass(algorithm, {WeightSettings{}});
    EXPECT_NO_THROW(pass.run({.rate = 0.1}, weights.parameters, gradients, weights.states));
  }
}

TEST(OptimizerPass, SquaresAreSummedInDouble) {
  Random random(7);
  const std::int64_t sizes[] = {3, 0, 50'001, 16384};
  for (const DType dtype : {DType::float32, DType::float64}) {
    std::vector<Tensor> tensors = random_tensors(dtype, sizes, random);
    double want = 0;
    for (const Tensor& t : tensors) {
      for (const double x : t.to_doubles()) want += x * x;
    }
    on_every_target([&] { EXPECT_NEAR(sum_of_squares(tensors), want, 1e-10 * want); });
    EXPECT_NEAR(sum_of_squares(tensors, 0.5), want / 4, 1e-10 * want);
    const double parts = sum_of_squares(tensors, 1, {0, 20'000}) + sum_of_squares(tensors, 1, {20'000, INT64_MAX});
    EXPECT_NEAR(parts, want, 1e-10 * want);
    EXPECT_EQ(sum_of_squares(tensors, 1, {7, 7}), 0);
  }
  std::vector<Tensor> large = {Tensor::from<float>(DType::float32, {2}, std::vector<float>{3e30F, 4e30F})};
  EXPECT_NEAR(std::sqrt(sum_of_squares(large)), 5e30, 1e25);
  large[0].as<float>()[1] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(std::isfinite(sum_of_squares(large)));
  large[0].as<float>()[0] = std::nanf("");
  EXPECT_FALSE(std::isfinite(sum_of_squares(large)));
}

TEST(OptimizerPass, TensorsThatDoNotGoTogetherAreRefused) {
  Random random(9);
  const std::vector<Tensor> w = {random_tensor(DType::float32, 4, random)};
  const std::vector<Tensor> g = {random_tensor(DType::float32, 5, random)};
  const OptimizerPass sgd(Algorithm::sgd, {WeightSettings{}});
  expect_error<InvalidInput>([&] { sgd.run({}, w, g, {}); },
                             {"gradient of weight 0: got float32[5], expected float32[4]"});
  expect_error<InvalidInput>([&] { sgd.run({}, w, {}, {}); }, {"got 0 gradients for 1 weights"});
  const OptimizerPass two(Algorithm::sgd, std::vector<WeightSettings>(2));
  expect_error<InvalidInput>([&] { two.run({}, w, w, {}); }, {"got 1 weights, expected 2"});
  const std::vector<std::vector<Tensor>> states = {{w[0]}, {random_tensor(DType::float64, 4, random)}};
  expect_error<InvalidInput>([&] { OptimizerPass(Algorithm::adam, {WeightSettings{}}).run({}, w, w, states); },
                             {"state of weight 0: got float64[4], expected float32[4]"});
}

}  // namespace
}  // namespace backpass
