#include "training/optimizer_pass.hpp"

#include <algorithm>

#include "ops/optimizers/exact_attribute.hpp"
#include "support/interruption.hpp"

namespace backpass {
namespace {

using States = std::span<const std::vector<Tensor>>;

void* memory_of(const Tensor& tensor) {
  return const_cast<void*>(tensor.data());  // NOLINT: handles share memory on purpose
}

void check_alike(const Tensor& weight, const Tensor& other, std::int64_t part, std::size_t i, const char* what) {
  const bool fits = other.dtype() == weight.dtype() && (other.size() == weight.size() || other.size() == part);
  if (fits) return;
  fail("optimizer: ", what, " of weight ", i, ": got ", name_of(other.dtype()), shown(other.dims()), ", expected ",
       name_of(weight.dtype()), shown(weight.dims()));
}

void check_counts(std::size_t weights, std::span<const Tensor> gradients, States states) {
  if (gradients.size() != weights) fail("optimizer: got ", gradients.size(), " gradients for ", weights, " weights");
  for (const std::vector<Tensor>& state : states) {
    if (state.size() != weights) fail("optimizer: states: got ", state.size(), " tensors for ", weights, " weights");
  }
}

std::vector<WeightMemory> memory_of(std::span<const Tensor> parameters, std::span<const Tensor> gradients,
                                    States states, ElementRange range) {
  check_counts(parameters.size(), gradients, states);
  std::vector<WeightMemory> weights(parameters.size());
  std::int64_t before = 0;  // elements of other weights
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const Tensor& w = parameters[i];
    check_alike(w, gradients[i], w.size(), i, "gradient");
    const std::int64_t begin = std::clamp<std::int64_t>(range.begin - before, 0, w.size());
    const std::int64_t end = std::clamp<std::int64_t>(range.end - before, begin, w.size());
    before += w.size();
    for (const std::vector<Tensor>& state : states) check_alike(w, state[i], end - begin, i, "state");
    weights[i] = {w.dtype(), w.size(), memory_of(w), gradients[i].data()};
    if (states.empty()) continue;
    if (states[0][i].size() != states[1][i].size()) fail("optimizer: states of weight ", i, ": got different sizes");
    weights[i].first = memory_of(states[0][i]);
    weights[i].second = memory_of(states[1][i]);
    weights[i].state_begin = states[0][i].size() == w.size() ? 0 : begin;
  }
  return weights;
}

UpdateRule::Attributes attributes_of(Algorithm algorithm, const WeightSettings& settings, double gradient_scale) {
  UpdateRule::Attributes attributes;
  auto add = [&](const char* name, double value) { attributes.emplace(name, exact_attribute(value)); };
  if (settings.rate_scale != 1) add("rate_scale", settings.rate_scale);
  if (gradient_scale != 1) add("gradient_scale", gradient_scale);
  add("weight_decay", settings.weight_decay);
  if (algorithm == Algorithm::sgd) return attributes;
  add("alpha", settings.alpha);
  add("beta", settings.beta);
  add("epsilon", settings.epsilon);
  attributes.emplace("correct_bias", std::int64_t{settings.correct_bias});
  attributes.emplace("adam_mode", std::int64_t{settings.decays_after});
  if (settings.decays_gradient) attributes.emplace("decays_gradient", std::int64_t{1});
  return attributes;
}

}  // namespace

OptimizerPass::OptimizerPass(Algorithm algorithm, const std::vector<WeightSettings>& settings) : algorithm_(algorithm) {
  for (const WeightSettings& s : settings) {
    const auto found = std::find(kinds_.begin(), kinds_.end(), s);
    kind_of_.push_back(static_cast<std::size_t>(found - kinds_.begin()));
    if (found == kinds_.end()) kinds_.push_back(s);
  }
}

std::vector<std::string> OptimizerPass::state_names(Algorithm algorithm) {
  if (algorithm == Algorithm::sgd) return {};
  return {"momentum0", "momentum1"};
}

void OptimizerPass::run(const Step& step, std::span<const Tensor> parameters, std::span<const Tensor> gradients,
                        std::span<const std::vector<Tensor>> states) const {
  ensure(states.size() == state_names(algorithm_).size(), "optimizer: number of states");
  run(step, memory_of(parameters, gradients, states, step.range));
}

void OptimizerPass::run(const Step& step, std::span<const WeightMemory> weights) const {
  if (kind_of_.size() != 1 && kind_of_.size() != weights.size()) {
    fail("optimizer: got ", weights.size(), " weights, expected ", kind_of_.size(), ", of which it has settings");
  }
  const Uninterrupted whole;  // all weights move together
  run_optimizer(algorithm_, step, {kinds_, kind_of_}, weights);
}

std::optional<UpdateRule> OptimizerPass::rule(double gradient_scale) const {
  if (algorithm_ == Algorithm::lamb) return std::nullopt;
  UpdateRule rule{algorithm_ == Algorithm::sgd ? "SGDUpdate" : "AdamWUpdate", {}, state_names(algorithm_)};
  for (const std::size_t kind : kind_of_) {
    rule.attributes.push_back(attributes_of(algorithm_, kinds_[kind], gradient_scale));
  }
  return rule;
}

}  // namespace backpass
