#include "training/trainer_impl.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/value_info.hpp"
#include "support/printable.hpp"
#include "training/artifact_checks.hpp"

namespace backpass {
namespace {

constexpr const char* kGroup = "group0";

Tensor zeros(DType dtype, const Dims& dims) {
  Tensor t(dtype, dims);
  if (t.bytes() > 0) std::memset(t.mutable_data(), 0, t.bytes());
  return t;
}

void check(const TrainerOptions& o) {
  if (o.accumulation_steps < 1) {
    fail("trainer: accumulation_steps: got ", o.accumulation_steps, ", expected 1 or more");
  }
  if (o.parallel.zero_stage < 0 || o.parallel.zero_stage > 1) {
    fail("trainer: zero_stage: got ", o.parallel.zero_stage, ", expected 0 or 1");
  }
}

}  // namespace

Trainer::Impl::Impl(std::shared_ptr<CheckpointState> s, const TrainerOptions& o) : state(std::move(s)), options(o) {
  if (state == nullptr) fail("trainer: got no checkpoint state, expected one with the weights");
  check(options);
  resume_random();
  steps = group().step * options.accumulation_steps;
}

OptimizerGroup& Trainer::Impl::group() {
  if (OptimizerGroup* g = state->find_group(kGroup)) return *g;
  state->optimizer_groups().emplace_back();
  state->optimizer_groups().back().name = kGroup;
  return state->optimizer_groups().back();
}

std::size_t Trainer::Impl::add(const TrainerModel& model) {
  TrainerSource source = training_source(model, *state, options.scales_loss);
  Program made;
  made.model = std::make_unique<StepModel>(
      source.model, [&](const std::string& name) { return state->has_parameter(name); }, options.session);
  check_fit(*state, *made.model, "training");
  check_optimized(*state, *made.model);
  for (const TrainerSource::Assignment& a : source.assignments) state->parameter(a.parameter);
  made.returned = std::move(source.returned);
  made.assignments = std::move(source.assignments);
  made.inputs = made.model->inputs();
  std::erase_if(made.inputs, [](const ValueInfo& info) { return info.name == kLossScale; });
  if (optimizer == nullptr) train_these(*made.model);
  made.order = order_of(*made.model);
  made.model->set_update(rule_for(made.order));
  if (parallel != nullptr) parallel->set_buckets(*made.model, made.order);
  programs.push_back(std::move(made));
  return programs.size() - 1;
}

std::size_t Trainer::Impl::add_eval(const TrainerModel& model, bool to_inference) {
  TrainerSource source = eval_source(model, *state, to_inference);
  Program made;
  made.model = std::make_unique<StepModel>(
      source.model, [&](const std::string& name) { return state->has_parameter(name); }, options.session);
  check_fit(*state, *made.model, "eval");
  made.returned = std::move(source.returned);
  made.inputs = made.model->inputs();
  eval_programs.push_back(std::move(made));
  return eval_programs.size() - 1;
}

void Trainer::Impl::train_these(const StepModel& model) {
  std::vector<WeightSettings> settings;
  for (const std::string& name : model.trainable()) {
    const auto own = options.by_weight.find(name);
    settings.push_back(own == options.by_weight.end() ? options.defaults : own->second);
  }
  optimizer = std::make_unique<OptimizerPass>(options.algorithm, settings);
  trained = model.trainable();
  for (const Parameter& p : state->parameters()) {
    if (std::find(trained.begin(), trained.end(), p.name) == trained.end()) untrained.push_back(p.name);
  }
  start_parallel(model, settings);
  if (!is_sharded()) make_states();
}

void Trainer::Impl::start_parallel(const StepModel& model, const std::vector<WeightSettings>& settings) {
  if (options.communicator == nullptr) return;
  parallel = std::make_unique<ParallelTraining>(options.communicator, options.parallel, *state, group(), trained,
                                                model.completion_order(), random);
  parallel->set_optimizer(options.algorithm, settings);
  gradients = parallel->gradients();
  steps = group().step * options.accumulation_steps;
}

void Trainer::Impl::make_states() {
  OptimizerGroup& g = group();
  for (const std::string& name : trained) {
    const Tensor& w = state->parameter(name).tensor;
    for (const std::string& key : OptimizerPass::state_names(options.algorithm)) {
      auto [it, added] = g.momentums[name].try_emplace(key);
      if (added) it->second = zeros(w.dtype(), w.dims());
      if (it->second.dims() == w.dims() && it->second.dtype() == w.dtype()) continue;
      fail("checkpoint: ", key, " of ", printable(name), ": got ", name_of(it->second.dtype()),
           to_string(it->second.dims()), ", expected ", name_of(w.dtype()), to_string(w.dims()), ", as the weight");
    }
  }
}

std::vector<std::size_t> Trainer::Impl::order_of(const StepModel& model) const {
  std::vector<std::size_t> order;
  for (const std::string& name : model.trainable()) {
    const auto found = std::find(trained.begin(), trained.end(), name);
    if (found != trained.end()) order.push_back(static_cast<std::size_t>(found - trained.begin()));
  }
  if (order.size() == trained.size() && model.trainable().size() == trained.size()) return order;
  std::string problems;
  auto note_missing = [&](const std::vector<std::string>& names, const std::vector<std::string>& in, const char* why) {
    for (const std::string& name : names) {
      if (std::find(in.begin(), in.end(), name) == in.end()) problems += concat("\nweight ", printable(name), why);
    }
  };
  note_missing(trained, model.trainable(), ": this model does not train it");
  note_missing(model.trainable(), trained, ": the first model does not train it");
  fail("trainer: got a model that trains other weights than the first one, expected the same", problems);
}

std::optional<UpdateRule> Trainer::Impl::rule_for(const std::vector<std::size_t>& order) const {
  std::optional<UpdateRule> rule = optimizer->rule();
  if (!rule || rule->attributes.size() < 2) return rule;
  std::vector<UpdateRule::Attributes> ordered;
  ordered.reserve(order.size());
  for (const std::size_t i : order) ordered.push_back(rule->attributes[i]);
  rule->attributes = std::move(ordered);
  return rule;
}

Trainer::Impl::Program& Trainer::Impl::program(std::size_t number) {
  if (number < programs.size()) return programs[number];
  fail("trainer: program: got ", number, ", expected one of ", programs.size(), " that add_model gave");
}

Trainer::Impl::Program& Trainer::Impl::eval_program(std::size_t number) {
  if (number < eval_programs.size()) return eval_programs[number];
  fail("trainer: eval program: got ", number, ", expected one of ", eval_programs.size(), " that add_eval_model gave");
}

std::vector<Tensor> Trainer::Impl::tensors(const std::vector<std::string>& names) const {
  std::vector<Tensor> result;
  result.reserve(names.size());
  for (const std::string& name : names) result.push_back(state->parameter(name).tensor);
  return result;
}

Trainer::Impl::Updated Trainer::Impl::updated() const {
  Updated result{tensors(trained), {}};
  if (is_sharded()) return result;
  const OptimizerGroup& g = *state->find_group(kGroup);
  for (const std::string& key : OptimizerPass::state_names(options.algorithm)) {
    std::vector<Tensor>& kept = result.states.emplace_back();
    kept.reserve(trained.size());
    for (const std::string& name : trained) kept.push_back(g.momentums.at(name).at(key));
  }
  return result;
}

std::vector<Tensor> Trainer::Impl::gradients_of(const Program& program) {
  if (gradients.empty()) {
    for (const Tensor& w : tensors(trained)) gradients.push_back(zeros(w.dtype(), w.dims()));
  }
  std::vector<Tensor> ordered;
  for (const std::size_t i : program.order) ordered.push_back(gradients[i]);
  return ordered;
}

std::vector<Tensor> Trainer::Impl::new_statistics(const StepModel& model) const {
  std::vector<Tensor> statistics;
  for (const std::string& name : model.updated()) {
    const Tensor& p = state->parameter(name).tensor;
    statistics.emplace_back(p.dtype(), p.dims());
  }
  return statistics;
}

void Trainer::Impl::resume_random() {
  const ResumeState& r = state->resume();
  const std::uint64_t rank = parallel == nullptr ? 0 : parallel->rank();
  if (r.seed && r.random_counter) random.restore({static_cast<std::uint64_t>(*r.seed) + rank, *r.random_counter});
}

void Trainer::Impl::remember_random() {
  const RandomRun next = random.peek();
  const std::uint64_t rank = parallel == nullptr ? 0 : parallel->rank();
  state->resume().seed = static_cast<std::int64_t>(next.seed - rank);
  state->resume().random_counter = next.run;
}

void Trainer::Impl::drop_gradients() {
  steps -= accumulated;
  accumulated = 0;
}

void Trainer::Impl::gather_optimizer_state() {
  if (is_sharded()) parallel->sharded().gather(tensors(trained), group());
}

}  // namespace backpass
