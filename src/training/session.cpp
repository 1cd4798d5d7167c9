#include <algorithm>
#include <cmath>
#include <map>

#include "onnx_io/writer.hpp"
#include "training/inference_export.hpp"
#include "training/session_impl.hpp"

namespace backpass {

TrainingSession::TrainingSession(std::shared_ptr<CheckpointState> state, const TrainingArtifacts& artifacts,
                                 const SessionOptions& options)
    : impl_(std::make_unique<Impl>(std::move(state), artifacts, options)) {}
TrainingSession::~TrainingSession() = default;
TrainingSession::TrainingSession(TrainingSession&&) noexcept = default;
TrainingSession& TrainingSession::operator=(TrainingSession&&) noexcept = default;

void TrainingSession::add_optimizer(const ModelSource& optimizer) { impl_->add_optimizer(optimizer); }

const std::shared_ptr<CheckpointState>& TrainingSession::state() const { return impl_->state; }
bool TrainingSession::has_eval_model() const { return impl_->eval != nullptr; }
bool TrainingSession::has_optimizer() const { return impl_->optimizer != nullptr; }

namespace {

void require_eval(const std::unique_ptr<StepModel>& eval, const char* what) {
  if (eval == nullptr) fail(what, ": the session was made without an eval model; give it one");
}

}  // namespace

const std::vector<ValueInfo>& TrainingSession::inputs(bool training) const {
  if (!training) require_eval(impl_->eval, "inputs");
  return training ? impl_->training->inputs() : impl_->eval->inputs();
}

const std::vector<ValueInfo>& TrainingSession::outputs(bool training) const {
  if (!training) require_eval(impl_->eval, "outputs");
  return training ? impl_->training->outputs() : impl_->eval->outputs();
}

std::vector<RuntimeValue> TrainingSession::train_step(std::span<const RuntimeValue> inputs) {
  return impl_->train(inputs);
}

std::vector<RuntimeValue> TrainingSession::train_and_update(std::span<const RuntimeValue> inputs) {
  return impl_->train_and_update(inputs);
}

std::vector<RuntimeValue> TrainingSession::eval_step(std::span<const RuntimeValue> inputs) {
  require_eval(impl_->eval, "eval_step");
  impl_->require_parameters("eval_step");
  impl_->random.peek();  // takes its seed first, as it would without evaluating
  return impl_->eval->run(inputs, impl_->tensors(impl_->eval->parameters()), StepModel::Gradients::replace, {}, {},
                          impl_->eval_random);
}

void TrainingSession::lazy_reset_grad() { impl_->overwrite = true; }

std::optional<Tensor> TrainingSession::gradient(std::string_view parameter) const {
  impl_->state->parameter(parameter);  // throws for an unknown one
  const std::vector<std::string>& trained = impl_->training->trainable();
  const auto found = std::find(trained.begin(), trained.end(), parameter);
  if (found == trained.end() || !impl_->has_gradients || impl_->state->is_nominal()) return std::nullopt;
  if (impl_->has_shared_out_gradients()) return std::nullopt;
  impl_->settle_gradients();
  return impl_->gradient_of(*found);
}

void TrainingSession::set_communicator(std::shared_ptr<Communicator> communicator, const ParallelOptions& options) {
  impl_->set_communicator(std::move(communicator), options);
}

void TrainingSession::set_exchanges(bool exchanges) { impl_->exchanges = exchanges; }

std::vector<Tensor> TrainingSession::gradient_buckets() const {
  if (impl_->parallel == nullptr) return {};
  if (!impl_->has_shared_out_gradients()) impl_->settle_gradients();
  return impl_->parallel->buckets();
}

void TrainingSession::gather_optimizer_state() { impl_->gather_optimizer_state(); }

void TrainingSession::optimizer_step() { impl_->step(); }

std::int64_t TrainingSession::optimizer_steps() const {
  impl_->require_optimizer();
  return impl_->group().step;
}

void TrainingSession::set_learning_rate(float rate) {
  impl_->require_optimizer();
  impl_->set_rate(rate);
}

float TrainingSession::learning_rate() const {
  impl_->require_optimizer();
  return impl_->rate;
}

void TrainingSession::register_linear_scheduler(std::int64_t warmup, std::int64_t total, float initial_rate) {
  impl_->require_optimizer();
  if (warmup < 0 || total < 0)
    fail("linear scheduler: got warmup ", warmup, ", total ", total, ", expected no less than 0");
  if (!std::isfinite(initial_rate)) fail("linear scheduler: got rate ", initial_rate, ", expected a finite number");
  impl_->schedule = {warmup, total, initial_rate};
  impl_->group().initial_lr = initial_rate;
  ResumeState& r = impl_->state->resume();
  r.scheduler = "linear";
  r.scheduler_state = {{"warmup", warmup}, {"total", total}, {"initial_rate", initial_rate}};
  impl_->set_rate(impl_->schedule->rate(impl_->group().step));
}

void TrainingSession::scheduler_step() {
  impl_->require_optimizer();
  if (!impl_->schedule) fail("scheduler_step: no scheduler is registered; register one first");
  impl_->set_rate(impl_->schedule->rate(impl_->group().step));
}

void TrainingSession::export_model_for_inferencing(const std::filesystem::path& path,
                                                   std::span<const std::string> outputs) const {
  require_eval(impl_->eval, "export_model_for_inferencing");
  impl_->state->require_whole("export_model_for_inferencing");
  onnx_io::WriteOptions options;
  if (impl_->state->uses_external_data()) options.external_data_threshold = 64;
  onnx_io::write_model(inference_model(*impl_->eval_proto, *impl_->state, outputs), path, options);
}

void TrainingSession::export_model_for_training(const std::filesystem::path& path) const {
  onnx_io::write_model(impl_->training->rewritten_model(), path);
}

PlanReport TrainingSession::plan(std::span<const RuntimeValue> inputs) const { return impl_->plan(inputs); }

PlanReport TrainingSession::plan_update(std::span<const RuntimeValue> inputs) const {
  return impl_->plan_update(inputs);
}

std::vector<Report> TrainingSession::pass_reports() const { return impl_->pass_reports(); }

DataReport TrainingSession::data_report() const { return impl_->training->data_report(); }

std::string TrainingSession::execution_model() const { return impl_->training->execution_model(); }

std::vector<StepRecord> TrainingSession::take_profile() const { return impl_->training->take_profile(); }

namespace {

bool counts(const CheckpointState& state, const std::string& name, bool trainable_only) {
  return !trainable_only || state.parameter(name).requires_grad;
}

}  // namespace

std::int64_t TrainingSession::parameters_size(bool trainable_only) const {
  std::int64_t size = 0;
  for (const ParameterInfo& p : impl_->training->parameter_infos()) {
    if (counts(*impl_->state, p.name, trainable_only)) size += element_count(p.dims);
  }
  return size;
}

Tensor TrainingSession::contiguous_parameters(bool trainable_only) const {
  impl_->require_parameters("contiguous_parameters");
  Tensor buffer(DType::float32, {parameters_size(trainable_only)});
  float* to = buffer.as<float>();
  for (const std::string& name : impl_->training->parameters()) {
    if (!counts(*impl_->state, name, trainable_only)) continue;
    const Tensor& p = impl_->state->parameter(name).tensor;
    if (p.dtype() != DType::float32) fail("parameter '", name, "': got ", name_of(p.dtype()), ", expected float32");
    to = std::copy_n(p.as<float>(), p.size(), to);
  }
  return buffer;
}

void TrainingSession::copy_to_parameters(const Tensor& buffer, bool trainable_only) {
  CheckpointState& state = *impl_->state;
  if (buffer.dtype() != DType::float32) fail("buffer: got ", name_of(buffer.dtype()), ", expected float32");
  const std::int64_t size = parameters_size(trainable_only);
  if (buffer.size() != size) fail("buffer: got ", buffer.size(), " elements, expected ", size);
  if (state.is_nominal() && trainable_only) {
    fail("buffer: got trainable_only for a nominal checkpoint state, expected all parameters");
  }
  const float* from = buffer.as<float>();
  std::map<std::string, Tensor> filled;
  for (const ParameterInfo& p : impl_->training->parameter_infos()) {
    if (!counts(state, p.name, trainable_only)) continue;
    if (p.dtype != DType::float32) fail("parameter '", p.name, "': got ", name_of(p.dtype), ", expected float32");
    Tensor t(DType::float32, p.dims);
    std::copy_n(from, t.size(), t.as<float>());
    from += t.size();
    filled.emplace(p.name, t);
  }
  if (!state.is_nominal()) {
    for (const auto& [name, tensor] : filled) state.set_parameter(name, tensor);
    return;
  }
  std::vector<Tensor> tensors;
  for (const Parameter& p : state.parameters()) {
    auto it = filled.find(p.name);
    if (it == filled.end()) fail("parameter '", p.name, "' of the checkpoint is not in the training model");
    tensors.push_back(it->second);
  }
  state.complete(tensors);
  impl_->allocate_momentums();
}

void set_seed(std::int64_t seed) { set_random_seed(static_cast<std::uint64_t>(seed)); }

}  // namespace backpass
