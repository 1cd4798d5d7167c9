// A step of a Trainer: gradients, then an update, or both at once.
#include <cmath>
#include <optional>

#include "support/interruption.hpp"
#include "support/parallel.hpp"
#include "training/rethrow_with.hpp"
#include "training/shared_memory.hpp"
#include "training/trainer_impl.hpp"

namespace backpass {

Trainer::Result Trainer::Impl::train_step(Program& program, std::span<const RuntimeValue> inputs, double rate) {
  state->require_whole("train_step");
  if (!std::isfinite(rate)) fail("trainer: learning rate: got ", rate, ", expected a finite number");
  const std::vector<RuntimeValue> given = with_scale(program, inputs);
  const Updated all = updated();
  obstacle = obstacle_for(program, given, all);
  Result result;
  if (obstacle.empty()) {
    result.outputs = run_and_update(program, given, rate, all);
    result.updated = true;
  } else {
    result.outputs = run(program, given);
    if (++accumulated == options.accumulation_steps) {
      result.updated = update(rate, result.all_finite);
      accumulated = 0;
    }
  }
  ++steps;
  return result;
}

std::vector<RuntimeValue> Trainer::Impl::with_scale(const Program& program,
                                                    std::span<const RuntimeValue> inputs) const {
  std::vector<RuntimeValue> given(inputs.begin(), inputs.end());
  if (!options.scales_loss || given.size() != program.inputs.size()) return given;
  const DType dtype = program.model->inputs().back().dtype;
  if (dtype == DType::float64) {
    given.emplace_back(Tensor::from<double>(dtype, {}, std::vector<double>{loss_scale}));
  } else {
    given.emplace_back(Tensor::from<float>(dtype, {}, std::vector<float>{static_cast<float>(loss_scale)}));
  }
  return given;
}

std::string Trainer::Impl::obstacle_for(Program& program, std::span<const RuntimeValue> inputs,
                                        const Updated& updated) {
  if (options.accumulation_steps > 1) return "gradients are accumulated";
  if (options.clips_gradients) return "gradients are clipped by the norm of all of them";
  if (options.skips_non_finite) return "gradients are used if all are finite";
  if (options.scales_loss) return "gradients are those of a scaled loss";
  if (options.communicator != nullptr) return "gradients are added up over processes";
  if (options.algorithm == Algorithm::lamb) return "the norm of a whole weight decides on its update";
  if (!program.model->update_obstacle().empty()) return program.model->update_obstacle();
  std::vector<Tensor> written;
  written.reserve((1 + updated.states.size()) * updated.parameters.size());
  written.insert(written.end(), updated.parameters.begin(), updated.parameters.end());
  for (const std::vector<Tensor>& kept : updated.states) written.insert(written.end(), kept.begin(), kept.end());
  std::vector<RuntimeValue> read(inputs.begin(), inputs.end());
  for (const std::string& name : untrained) read.emplace_back(state->parameter(name).tensor);
  return shares_memory(written, read) ? "weights share memory with each other or with inputs" : "";
}

std::vector<RuntimeValue> Trainer::Impl::run(Program& program, std::span<const RuntimeValue> inputs) {
  const bool begins = accumulated == 0;
  const std::vector<Tensor> statistics = new_statistics(*program.model);
  const RememberRandom remember{*this};
  const auto mode = begins ? StepModel::Gradients::replace : StepModel::Gradients::add;
  std::optional<ParallelTraining::Exchange> exchange;
  const bool is_last = accumulated + 1 == options.accumulation_steps;
  if (parallel != nullptr && adasum() == nullptr && is_last) exchange.emplace(*parallel);
  try {
    std::vector<RuntimeValue> results = program.model->run(inputs, tensors(program.model->parameters()), mode,
                                                           gradients_of(program), statistics, random);
    if (exchange) exchange->finish();
    return finish(program, std::move(results), statistics);
  } catch (...) {
    if (begins || (!exchange && program.model->has_whole_gradients())) throw;
    drop_gradients();  // some hold this step, others do not
    rethrow_with("; gradients since the last update are dropped, their accumulation begins anew");
  }
}

std::vector<RuntimeValue> Trainer::Impl::run_and_update(Program& program, std::span<const RuntimeValue> inputs,
                                                        double rate, const Updated& all) {
  const std::vector<Tensor> statistics = new_statistics(*program.model);
  auto in_order = [&](const std::vector<Tensor>& kept) {  // as the program has them
    std::vector<Tensor> result;
    result.reserve(program.order.size());
    for (const std::size_t i : program.order) result.push_back(kept[i]);
    return result;
  };
  Updated ordered{in_order(all.parameters), {}};
  for (const std::vector<Tensor>& kept : all.states) ordered.states.push_back(in_order(kept));
  const UpdateArguments update{rate, group().step + 1, ordered.parameters, ordered.states};
  const RememberRandom remember{*this};
  try {
    std::vector<RuntimeValue> results =
        finish(program,
               program.model->run_and_update(inputs, tensors(program.model->parameters()), update, statistics, random),
               statistics);
    ++group().step;
    return results;
  } catch (...) {
    if (!program.model->has_half_updated()) throw;
    state->set_half_updated();
    rethrow_with("; before that, the step had updated some weights and not others: load the last checkpoint");
  }
}

double Trainer::Impl::gradient_scale() const {
  const bool are_sums = options.communicator != nullptr && !options.parallel.adasum;
  const int world = are_sums ? options.communicator->size() : 1;
  return 1 / (static_cast<double>(options.accumulation_steps) * world * (options.scales_loss ? loss_scale : 1));
}

bool Trainer::Impl::update(double rate, bool& all_finite) {
  const ThreadScope threads(options.session.num_threads);
  OptimizerPass::Step step;
  step.rate = rate;
  step.step = group().step + 1;
  step.gradient_scale = gradient_scale();
  last_norm = std::numeric_limits<double>::quiet_NaN();
  if (options.clips_gradients || options.skips_non_finite) {
    last_norm = parallel != nullptr ? parallel->norm(step.gradient_scale)
                                    : std::sqrt(sum_of_squares(gradients, step.gradient_scale));
    all_finite = std::isfinite(last_norm);
    if (options.skips_non_finite && adasum() != nullptr) all_finite = adasum()->is_everywhere(all_finite);
    if (options.clips_gradients) step.norm = last_norm;
  }
  if (options.skips_non_finite && !all_finite) return false;
  const Uninterrupted whole;  // all weights move together
  move_weights(step);
  ++group().step;
  state->resume().learning_rate = static_cast<float>(rate);
  return true;
}

void Trainer::Impl::move_weights(const OptimizerPass::Step& step) {
  const Updated what = updated();
  const auto move = [&] { optimizer->run(step, what.parameters, gradients, what.states); };
  if (!is_sharded() && adasum() == nullptr) return move();
  try {
    if (adasum() != nullptr) return adasum()->run(what.parameters, gradients, move);
    parallel->sharded().run(step, what.parameters, group());
  } catch (...) {
    state->set_half_updated();
    rethrow_with("; weights of some processes had moved, others had not: load the last checkpoint");
  }
}

std::vector<RuntimeValue> Trainer::Impl::finish(const Program& program, std::vector<RuntimeValue> results,
                                                const std::vector<Tensor>& statistics) {
  std::vector<Tensor> buffers = statistics;
  for (const TrainerSource::Assignment& a : program.assignments) buffers.push_back(results[a.output].tensor);
  if (parallel != nullptr) parallel->average(buffers);
  for (std::size_t i = 0; i < statistics.size(); ++i) state->set_parameter(program.model->updated()[i], statistics[i]);
  for (const TrainerSource::Assignment& a : program.assignments) {
    state->set_parameter(a.parameter, results[a.output].tensor);
  }
  std::vector<RuntimeValue> returned;
  for (const std::size_t i : program.returned) returned.push_back(results[i]);
  return returned;
}

std::vector<RuntimeValue> Trainer::Impl::eval_step(Program& program, std::span<const RuntimeValue> inputs) {
  state->require_whole("eval_step");
  random.peek();  // takes its seed first, as it would without evaluating
  return finish(program,
                program.model->run(inputs, tensors(program.model->parameters()), StepModel::Gradients::replace, {}, {},
                                   eval_random),
                {});
}

PlanReport Trainer::Impl::plan(Program& program, std::span<const RuntimeValue> inputs) {
  const std::vector<RuntimeValue> given = with_scale(program, inputs);
  const std::vector<Tensor> parameters = tensors(program.model->parameters());
  const Updated what = updated();
  const std::string why = obstacle_for(program, given, what);
  if (why.empty()) {
    PlanReport report = program.model->plan_update(given, parameters, {0, 1, what.parameters, what.states});
    report.text += "each weight is updated as soon as its gradient is complete\n";
    return report;
  }
  std::vector<Tensor> buffers;  // of which a plan wants the extents alone
  for (const std::string& name : program.model->trainable()) {
    const Tensor& w = state->parameter(name).tensor;
    buffers.emplace_back(w.dtype(), w.dims(), nullptr, nullptr);
  }
  PlanReport report = program.model->plan(given, parameters, buffers);
  report.text += concat("weights are updated when all gradients are complete: ", why, "\n");
  return report;
}

}  // namespace backpass
