#include "backpass/trainer.hpp"

#include <cmath>

#include "training/trainer_impl.hpp"

namespace backpass {

Trainer::Trainer(std::shared_ptr<CheckpointState> state, const TrainerOptions& options)
    : impl_(std::make_unique<Impl>(std::move(state), options)) {}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

std::size_t Trainer::add_model(const TrainerModel& model) { return impl_->add(model); }

std::size_t Trainer::add_eval_model(const TrainerModel& model, bool to_inference) {
  return impl_->add_eval(model, to_inference);
}

const std::vector<ValueInfo>& Trainer::inputs(std::size_t program) const { return impl_->program(program).inputs; }

const std::vector<ValueInfo>& Trainer::eval_inputs(std::size_t program) const {
  return impl_->eval_program(program).inputs;
}

const std::vector<std::string>& Trainer::trained() const { return impl_->trained; }

Trainer::Result Trainer::train_step(std::size_t program, std::span<const RuntimeValue> inputs, double rate) {
  return impl_->train_step(impl_->program(program), inputs, rate);
}

std::vector<RuntimeValue> Trainer::eval_step(std::size_t program, std::span<const RuntimeValue> inputs) {
  return impl_->eval_step(impl_->eval_program(program), inputs);
}

std::int64_t Trainer::steps() const { return impl_->steps; }

std::int64_t Trainer::updates() const { return impl_->group().step; }

void Trainer::set_steps(std::int64_t steps) {
  if (steps < 0) fail("trainer: steps: got ", steps, ", expected 0 or more");
  impl_->steps = steps;
}

void Trainer::set_updates(std::int64_t updates) {
  if (updates < 0) fail("trainer: updates: got ", updates, ", expected 0 or more");
  impl_->group().step = updates;
}

double Trainer::loss_scale() const { return impl_->loss_scale; }

void Trainer::set_loss_scale(double scale) {
  if (!(scale > 0) || !std::isfinite(scale)) fail("trainer: loss_scale: got ", scale, ", expected a positive number");
  impl_->loss_scale = scale;
}

double Trainer::last_norm() const { return impl_->last_norm; }

void Trainer::drop_gradients() { impl_->drop_gradients(); }

void Trainer::resume_random() { impl_->resume_random(); }

void Trainer::gather_optimizer_state() { impl_->gather_optimizer_state(); }

PlanReport Trainer::plan(std::size_t program, std::span<const RuntimeValue> inputs) const {
  return impl_->plan(impl_->program(program), inputs);
}

std::vector<Report> Trainer::pass_reports(std::size_t program) const {
  std::vector<Report> reports = impl_->program(program).model->pass_reports();
  if (!impl_->obstacle.empty()) {
    reports.push_back({.pass = "train_step", .what = "updated weights after the step", .why = impl_->obstacle});
  }
  return reports;
}

std::vector<StepRecord> Trainer::take_profile(std::size_t program) const {
  return impl_->program(program).model->take_profile();
}

}  // namespace backpass
