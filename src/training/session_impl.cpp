#include "training/session_impl.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/interruption.hpp"
#include "support/parallel.hpp"
#include "training/artifact_checks.hpp"
#include "training/read_source.hpp"

namespace backpass {
namespace {

Tensor zeros(DType dtype, const Dims& dims) {
  Tensor t(dtype, dims);
  if (t.bytes() > 0) std::memset(t.mutable_data(), 0, t.bytes());
  return t;
}

constexpr const char* kGroup = "group0";

}  // namespace

TrainingSession::Impl::Impl(std::shared_ptr<CheckpointState> s, const TrainingArtifacts& artifacts,
                            const SessionOptions& o)
    : state(std::move(s)), options(o) {
  if (state == nullptr) fail("checkpoint state: got none, expected a loaded one");
  if (artifacts.training.empty()) fail("training model: got none, expected a file or its bytes");
  auto is_parameter = [&](const std::string& name) { return state->has_parameter(name); };
  training = std::make_unique<StepModel>(read_source(artifacts.training), is_parameter, options);
  if (!artifacts.eval.empty()) {
    eval_proto = read_source(artifacts.eval);
    eval = std::make_unique<StepModel>(*eval_proto, is_parameter, options);
  }
  check_artifacts(*state, *training, eval.get());
  for (const Parameter& p : state->parameters()) {
    const std::vector<std::string>& trained = training->trainable();
    if (std::find(trained.begin(), trained.end(), p.name) == trained.end()) untrained.push_back(p.name);
  }
  const ResumeState& r = state->resume();
  if (r.seed && r.random_counter) random.restore({static_cast<std::uint64_t>(*r.seed), *r.random_counter});
  if (!artifacts.optimizer.empty()) add_optimizer(artifacts.optimizer);
}

void TrainingSession::Impl::add_optimizer(const ModelSource& source) {
  if (source.empty()) fail("optimizer model: got none, expected a file or its bytes");
  auto made = std::make_unique<OptimizerModel>(read_source(source));
  check_optimized(*state, *training);
  optimizer = std::move(made);
  training->set_update(optimizer->rule());
  resume_rate();
  if (parallel != nullptr) share_optimizer();
  if (!state->is_nominal()) allocate_momentums();
}

void TrainingSession::Impl::resume_rate() {
  const ResumeState& r = state->resume();
  if (r.learning_rate) rate = *r.learning_rate;
  if (r.scheduler != "linear") return;
  auto number = [&](const char* key) { return std::get<std::int64_t>(r.scheduler_state.at(key)); };
  schedule = {number("warmup"), number("total"), std::get<float>(r.scheduler_state.at("initial_rate"))};
}

void TrainingSession::Impl::allocate_momentums() {
  if (optimizer == nullptr || is_sharded()) return;
  OptimizerGroup& g = group();
  for (const std::string& name : training->trainable()) {
    const Tensor& p = state->parameter(name).tensor;
    for (const std::string& key : optimizer->state_names()) {
      auto [it, added] = g.momentums[name].try_emplace(key);
      if (added) it->second = zeros(p.dtype(), p.dims());
      if (it->second.dims() != p.dims() || it->second.dtype() != p.dtype()) {
        fail("checkpoint: ", key, " of '", name, "': got ", name_of(it->second.dtype()), to_string(it->second.dims()),
             ", expected ", name_of(p.dtype()), to_string(p.dims()), ", as the parameter");
      }
    }
  }
}

OptimizerGroup& TrainingSession::Impl::group() {
  if (OptimizerGroup* g = state->find_group(kGroup)) return *g;
  state->optimizer_groups().emplace_back();
  state->optimizer_groups().back().name = kGroup;
  return state->optimizer_groups().back();
}

std::vector<Tensor> TrainingSession::Impl::tensors(const std::vector<std::string>& names) const {
  std::vector<Tensor> result;
  result.reserve(names.size());
  for (const std::string& name : names) result.push_back(state->parameter(name).tensor);
  return result;
}

void TrainingSession::Impl::require_parameters(const char* what) const {
  if (state->is_nominal()) fail(what, ": got a nominal checkpoint state; load its parameters first");
  state->require_whole(what);
}

/// Some have this batch, others do not: no sum to go on with.
void TrainingSession::Impl::require_gradients(const char* what) const {
  if (!has_gradients) {
    fail(what, ": got no gradients, since train_and_update keeps none; use train_step and optimizer_step");
  }
  if (training->has_whole_gradients()) return;
  fail(what, ": got gradients that a training step was stopped in the midst of writing; call lazy_reset_grad and ",
       "repeat the step, and those whose gradients were to be added to");
}

void TrainingSession::Impl::require_optimizer() const {
  if (optimizer == nullptr) fail("optimizer: the session was made without an optimizer model; give it one");
}

const Tensor& TrainingSession::Impl::gradient_of(const std::string& name) {
  const auto found = gradients.find(name);
  if (found != gradients.end()) return found->second;
  const Tensor& p = state->parameter(name).tensor;
  return gradients.emplace(name, zeros(p.dtype(), p.dims())).first->second;
}

std::vector<Tensor> TrainingSession::Impl::gradient_buffers() {
  std::vector<Tensor> buffers;
  for (const std::string& name : training->trainable()) buffers.push_back(gradient_of(name));
  return buffers;
}

std::vector<std::vector<Tensor>> TrainingSession::Impl::optimizer_states() {
  const OptimizerGroup& g = group();
  std::vector<std::vector<Tensor>> kept;
  if (is_sharded()) return kept;
  for (const std::string& key : optimizer->state_names()) {
    kept.emplace_back();
    for (const std::string& name : training->trainable()) kept.back().push_back(g.momentums.at(name).at(key));
  }
  return kept;
}

std::vector<Tensor> TrainingSession::Impl::new_statistics() const {
  std::vector<Tensor> statistics;
  for (const std::string& name : training->updated()) {
    const Tensor& p = state->parameter(name).tensor;
    statistics.emplace_back(p.dtype(), p.dims());
  }
  return statistics;
}

void TrainingSession::Impl::keep_statistics(const std::vector<Tensor>& statistics) {
  for (std::size_t i = 0; i < statistics.size(); ++i) state->set_parameter(training->updated()[i], statistics[i]);
}

void TrainingSession::Impl::remember_random() {
  const RandomRun next = random.peek();
  const std::uint64_t rank = parallel == nullptr ? 0 : parallel->rank();
  state->resume().seed = static_cast<std::int64_t>(next.seed - rank);
  state->resume().random_counter = next.run;
}

void TrainingSession::Impl::set_rate(float value) {
  if (!std::isfinite(value) || value < 0) fail("learning rate: got ", value, ", expected a finite number, 0 or more");
  rate = value;
  state->resume().learning_rate = value;
}

std::vector<RuntimeValue> TrainingSession::Impl::train(std::span<const RuntimeValue> inputs) {
  require_parameters("train_step");
  const std::vector<Tensor> statistics = new_statistics();
  if (!overwrite) require_gradients("train_step");
  if (!overwrite) settle_gradients();
  const RememberRandom remember{*this};
  const auto mode = overwrite ? StepModel::Gradients::replace : StepModel::Gradients::add;
  std::optional<ParallelTraining::Exchange> exchange;
  if (parallel != nullptr && exchanges) exchange.emplace(*parallel);
  std::vector<RuntimeValue> results =
      training->run(inputs, tensors(training->parameters()), mode, gradient_buffers(), statistics, random);
  are_exchanged = false;
  gradient_scale = 1;
  if (exchange) exchange->finish();
  if (exchange) note_exchange();
  if (parallel != nullptr) parallel->average(statistics);
  keep_statistics(statistics);
  overwrite = false;
  has_gradients = true;
  return results;
}

void TrainingSession::Impl::step() {
  require_optimizer();
  require_parameters("optimizer_step");
  require_gradients("optimizer_step");
  const ThreadScope threads(options.num_threads);
  if (parallel != nullptr && !are_exchanged) exchange_late();
  if (is_sharded()) return sharded_step();
  if (optimizer->clips_gradients()) settle_gradients();
  const std::vector<Tensor> buffers = gradient_buffers();
  const Uninterrupted whole;  // all parameters move together
  optimizer->step(rate, group().step + 1, tensors(training->trainable()), buffers, optimizer_states(), gradient_scale);
  count_step();
}

void TrainingSession::Impl::count_step() {
  ++group().step;
  state->resume().learning_rate = rate;
}

}  // namespace backpass
