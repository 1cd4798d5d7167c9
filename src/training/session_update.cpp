// Steps that update parameters while gradients are computed, and the plans of both kinds of steps.
#include <set>

#include "training/session_impl.hpp"
#include "training/shared_memory.hpp"

namespace backpass {
namespace {

/// The error being handled, with something to add if it is one of ours.
[[noreturn]] void rethrow_with(const char* note) {
  try {
    throw;
  } catch (const InvalidInput& e) {
    fail<InvalidInput>(e.what(), note);
  } catch (const Unsupported& e) {
    fail<Unsupported>(e.what(), note);
  } catch (const InternalBug& e) {
    fail<InternalBug>(e.what(), note);
  }
}

}  // namespace

std::string TrainingSession::Impl::obstacle_for(std::span<const RuntimeValue> inputs) {
  if (!overwrite) return "gradients are being added up";
  if (optimizer->clips_gradients()) return "the optimizer clips by the norm of all gradients";
  if (!training->update_obstacle().empty()) return training->update_obstacle();
  std::vector<Tensor> written = tensors(training->trainable());
  for (const std::vector<Tensor>& kept : optimizer_states()) written.insert(written.end(), kept.begin(), kept.end());
  std::vector<RuntimeValue> read(inputs.begin(), inputs.end());
  const std::set<std::string> trained(training->trainable().begin(), training->trainable().end());
  for (const Parameter& p : state->parameters()) {
    if (!trained.contains(p.name)) read.emplace_back(p.tensor);
  }
  return shares_memory(written, read) ? "parameters share memory with each other or with inputs" : "";
}

std::vector<RuntimeValue> TrainingSession::Impl::train_and_update(std::span<const RuntimeValue> inputs) {
  require_optimizer();
  require_parameters("train_and_update");
  obstacle = obstacle_for(inputs);
  std::vector<RuntimeValue> results;
  if (obstacle.empty()) {
    results = update_while_training(inputs);
    gradients.clear();
  } else {
    results = train(inputs);
    step();
  }
  overwrite = true;
  has_gradients = false;
  return results;
}

std::vector<RuntimeValue> TrainingSession::Impl::update_while_training(std::span<const RuntimeValue> inputs) {
  const std::vector<Tensor> statistics = new_statistics();
  const std::vector<Tensor> trained = tensors(training->trainable());
  const std::vector<std::vector<Tensor>> kept = optimizer_states();
  const RememberRandom remember{*this};
  try {
    std::vector<RuntimeValue> results = training->run_and_update(
        inputs, tensors(training->parameters()), {rate, group().step + 1, trained, kept}, statistics, random);
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
  const std::string why_not = obstacle_for(inputs);
  if (!why_not.empty()) {
    PlanReport report = plan(inputs);
    report.text += concat("parameters are updated after the step: ", why_not, "\n");
    return report;
  }
  const std::vector<Tensor> trained = tensors(training->trainable());
  const std::vector<std::vector<Tensor>> kept = optimizer_states();
  PlanReport report =
      training->plan_update(inputs, tensors(training->parameters()), {rate, group().step + 1, trained, kept});
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
