// Steps that update parameters while gradients are computed, and the plans of both kinds of steps.
#include "training/rethrow_with.hpp"
#include "training/session_impl.hpp"
#include "training/shared_memory.hpp"

namespace backpass {

std::string TrainingSession::Impl::obstacle_for(std::span<const RuntimeValue> inputs, const Updated& updated) {
  if (!overwrite) return "gradients are being added up";
  if (parallel != nullptr) return "gradients are added up over processes";
  if (optimizer->clips_gradients()) return "the optimizer clips by the norm of all gradients";
  if (!training->update_obstacle().empty()) return training->update_obstacle();
  std::vector<Tensor> written = updated.parameters;
  for (const std::vector<Tensor>& kept : updated.states) written.insert(written.end(), kept.begin(), kept.end());
  std::vector<RuntimeValue> read(inputs.begin(), inputs.end());
  for (const std::string& name : untrained) read.emplace_back(state->parameter(name).tensor);
  return shares_memory(written, read) ? "parameters share memory with each other or with inputs" : "";
}

std::vector<RuntimeValue> TrainingSession::Impl::train_and_update(std::span<const RuntimeValue> inputs) {
  require_optimizer();
  require_parameters("train_and_update");
  const Updated updated{tensors(training->trainable()), optimizer_states()};
  obstacle = obstacle_for(inputs, updated);
  std::vector<RuntimeValue> results;
  if (obstacle.empty()) {
    results = update_while_training(inputs, updated);
    gradients.clear();
  } else {
    results = train(inputs);
    step();
  }
  overwrite = true;
  has_gradients = false;
  return results;
}

std::vector<RuntimeValue> TrainingSession::Impl::update_while_training(std::span<const RuntimeValue> inputs,
                                                                       const Updated& updated) {
  const std::vector<Tensor> statistics = new_statistics();
  const UpdateArguments update{rate, group().step + 1, updated.parameters, updated.states};
  const RememberRandom remember{*this};
  try {
    std::vector<RuntimeValue> results =
        training->run_and_update(inputs, tensors(training->parameters()), update, statistics, random);
    keep_statistics(statistics);
    count_step();
    return results;
  } catch (...) {
    if (!training->has_half_updated()) throw;
    state->set_half_updated();
    rethrow_with("; before that, the step had updated some parameters and not others: load the last checkpoint");
  }
}

PlanReport TrainingSession::Impl::plan(std::span<const RuntimeValue> inputs) const {
  require_parameters("plan");
  std::vector<Tensor> buffers;  // of which a plan wants the extents alone
  for (const Tensor& p : tensors(training->trainable())) buffers.emplace_back(p.dtype(), p.dims(), nullptr, nullptr);
  PlanReport report = training->plan(inputs, tensors(training->parameters()), buffers);
  add_held(report, /*with_gradients=*/true);
  return report;
}

PlanReport TrainingSession::Impl::plan_update(std::span<const RuntimeValue> inputs) {
  require_optimizer();
  require_parameters("plan_update");
  const Updated updated{tensors(training->trainable()), optimizer_states()};
  const std::string why_not = obstacle_for(inputs, updated);
  if (!why_not.empty()) {
    PlanReport report = plan(inputs);
    report.text += concat("parameters are updated after the step: ", why_not, "\n");
    return report;
  }
  const UpdateArguments update{rate, group().step + 1, updated.parameters, updated.states};
  PlanReport report = training->plan_update(inputs, tensors(training->parameters()), update);
  add_held(report, /*with_gradients=*/false);
  report.text += "each parameter is updated as soon as its gradient is complete\n";
  return report;
}

void TrainingSession::Impl::add_held(PlanReport& report, bool with_gradients) const {
  auto bytes_of = [&](const std::vector<std::string>& names) {
    std::int64_t sum = 0;
    for (const std::string& name : names) sum += static_cast<std::int64_t>(state->parameter(name).tensor.bytes());
    return sum;
  };
  const std::int64_t trained = bytes_of(training->trainable());
  HeldBytes& held = report.held;
  held.parameters = bytes_of(training->parameters());
  held.gradients = with_gradients ? trained : 0;
  if (optimizer != nullptr) {
    held.optimizer_state = trained * static_cast<std::int64_t>(optimizer->state_names().size());
    if (is_sharded()) held.optimizer_state = (held.optimizer_state + parallel->size() - 1) / parallel->size();
  }
  report.text += concat("held: ", held.parameters, " bytes of parameters, ", held.gradients, " of gradients, ",
                        held.optimizer_state, " of optimizer state\n");
}

std::vector<Report> TrainingSession::Impl::pass_reports() const {
  std::vector<Report> reports = training->pass_reports();
  if (!obstacle.empty()) {
    reports.push_back({.pass = "train_and_update", .what = "updated parameters after the step", .why = obstacle});
  }
  return reports;
}

}  // namespace backpass
