#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "backpass/training.hpp"
#include "onnx_io/reader.hpp"
#include "onnx_io/writer.hpp"
#include "support/interruption.hpp"
#include "support/parallel.hpp"
#include "support/printable.hpp"
#include "training/inference_export.hpp"
#include "training/linear_schedule.hpp"
#include "training/optimizer_model.hpp"
#include "training/step_model.hpp"

namespace backpass {
namespace {

onnx_io::ModelProto read(const ModelSource& source) {
  if (!source.bytes.empty()) return onnx_io::read_model(source.bytes, nullptr);
  return onnx_io::read_model(source.path);
}

Tensor zeros(DType dtype, const Dims& dims) {
  Tensor t(dtype, dims);
  if (t.bytes() > 0) std::memset(t.mutable_data(), 0, t.bytes());
  return t;
}

constexpr const char* kGroup = "group0";

}  // namespace

struct TrainingSession::Impl {
  std::shared_ptr<CheckpointState> state;
  SessionOptions options;
  std::unique_ptr<StepModel> training;
  std::unique_ptr<StepModel> eval;
  std::optional<onnx_io::ModelProto> eval_proto;
  std::unique_ptr<OptimizerModel> optimizer;
  std::optional<LinearSchedule> schedule;
  RandomSource random;       // of training steps: what a checkpoint keeps
  RandomSource eval_random;  // evaluating leaves the other one where it was
  float rate = 0.001F;
  bool overwrite = true;
  std::map<std::string, Tensor, std::less<>> gradients;

  Impl(std::shared_ptr<CheckpointState> s, const TrainingArtifacts& artifacts, const SessionOptions& o)
      : state(std::move(s)), options(o) {
    if (state == nullptr) fail("checkpoint state: got none, expected a loaded one");
    if (artifacts.training.empty()) fail("training model: got none, expected a file or its bytes");
    auto is_parameter = [&](const std::string& name) { return state->has_parameter(name); };
    training = std::make_unique<StepModel>(read(artifacts.training), is_parameter, options);
    if (!artifacts.eval.empty()) {
      eval_proto = read(artifacts.eval);
      eval = std::make_unique<StepModel>(*eval_proto, is_parameter, options);
    }
    check_trainable();
    check_parameters();
    const ResumeState& r = state->resume();
    if (r.seed && r.random_counter) random.restore({static_cast<std::uint64_t>(*r.seed), *r.random_counter});
    if (!state->is_nominal()) allocate_gradients();
    if (!artifacts.optimizer.empty()) add_optimizer(artifacts.optimizer);
  }

  void add_optimizer(const ModelSource& source) {
    if (source.empty()) fail("optimizer model: got none, expected a file or its bytes");
    auto made = std::make_unique<OptimizerModel>(read(source));
    check_optimized();
    optimizer = std::move(made);
    resume_rate();
    if (!state->is_nominal()) allocate_momentums();
  }

  /// The wrong file of a set, or a checkpoint of another model: contents would be read as what they are not. A frozen
  /// parameter that the checkpoint lacks cannot be told from an input of the user's.
  void check_parameters() const {
    std::string problems;
    for (const std::string& name : training->trainable()) {
      const bool is_known = state->has_parameter(name);
      if (is_known && state->parameter(name).requires_grad) continue;
      problems += concat(
          "\nparameter ", printable(name), ": the training model has a gradient for it, but it is ",
          is_known ? "frozen in the checkpoint" : "not in the checkpoint (for gradients of inputs use backpass::grad)");
    }
    std::set<std::string> declared(training->parameters().begin(), training->parameters().end());
    if (eval != nullptr) declared.insert(eval->parameters().begin(), eval->parameters().end());
    for (const Parameter& p : state->parameters()) {
      if (declared.contains(p.name)) continue;
      problems += concat("\nparameter ", printable(p.name), ": it is in the checkpoint, but not in the model");
    }
    problems += misfits(*training, "training");
    if (eval != nullptr) problems += misfits(*eval, "eval");
    if (!problems.empty()) fail("checkpoint: it does not fit the model; use the one made with it", problems);
  }

  std::string misfits(const StepModel& model, const char* which) const {
    std::string problems;
    for (const ParameterInfo& p : model.parameter_infos()) {
      const Parameter& kept = state->parameter(p.name);
      if (kept.dtype == p.dtype && (state->is_nominal() || kept.tensor.dims() == p.dims)) continue;
      problems += concat("\nparameter ", printable(p.name), ": got ", name_of(kept.dtype),
                         state->is_nominal() ? "" : to_string(kept.tensor.dims()), " in the checkpoint, expected ",
                         name_of(p.dtype), to_string(p.dims), " as in the ", which, " model");
    }
    return problems;
  }

  void check_trainable() const {
    const std::vector<Parameter>& all = state->parameters();
    const bool trains = std::any_of(all.begin(), all.end(), [](const Parameter& p) { return p.requires_grad; });
    if (trains && training->trainable().empty()) {
      fail("training model: got a model without gradients, expected some, as the checkpoint has parameters to train; ",
           "is it the eval model?");
    }
    if (eval != nullptr && !eval->trainable().empty()) {
      fail("eval model: got a model with gradients, expected none; is it the training model?");
    }
  }

  /// Before the first step: one that fails in the middle would leave some parameters updated.
  void check_optimized() const {
    std::string problems;
    for (const std::string& name : training->trainable()) {
      const DType dtype = state->parameter(name).dtype;
      if (dtype == DType::float32 || dtype == DType::float64) continue;
      problems += concat("\nparameter '", name, "': got ", name_of(dtype),
                         ", expected float32 or float64, which optimizers update; store it so and cast it");
    }
    if (!problems.empty()) fail<Unsupported>(problems.substr(1));
  }

  void resume_rate() {
    const ResumeState& r = state->resume();
    if (r.learning_rate) rate = *r.learning_rate;
    if (r.scheduler != "linear") return;
    auto number = [&](const char* key) { return std::get<std::int64_t>(r.scheduler_state.at(key)); };
    schedule = {number("warmup"), number("total"), std::get<float>(r.scheduler_state.at("initial_rate"))};
  }

  void allocate_gradients() {
    for (const std::string& name : training->trainable()) {
      const Tensor& p = state->parameter(name).tensor;
      gradients.emplace(name, zeros(p.dtype(), p.dims()));
    }
  }

  void allocate_momentums() {
    if (optimizer == nullptr) return;
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

  OptimizerGroup& group() {
    if (OptimizerGroup* g = state->find_group(kGroup)) return *g;
    state->optimizer_groups().emplace_back();
    state->optimizer_groups().back().name = kGroup;
    return state->optimizer_groups().back();
  }

  std::vector<Tensor> tensors(const std::vector<std::string>& names) const {
    std::vector<Tensor> result;
    result.reserve(names.size());
    for (const std::string& name : names) result.push_back(state->parameter(name).tensor);
    return result;
  }

  void require_parameters(const char* what) const {
    if (state->is_nominal()) fail(what, ": got a nominal checkpoint state; load its parameters first");
  }

  /// Some have this batch, others do not: no sum to go on with.
  void require_gradients(const char* what) const {
    if (training->has_whole_gradients()) return;
    fail(what, ": got gradients that a training step was stopped in the midst of writing; call lazy_reset_grad and ",
         "repeat the step, and those whose gradients were to be added to");
  }

  void require_optimizer() const {
    if (optimizer == nullptr) fail("optimizer: the session was made without an optimizer model; give it one");
  }

  /// Tells the state where the random numbers are when a step is over: done or failed, it has counted.
  struct RememberRandom {
    Impl& impl;

    ~RememberRandom() { impl.remember_random(); }
  };

  std::vector<RuntimeValue> train(std::span<const RuntimeValue> inputs) {
    require_parameters("train_step");
    std::vector<Tensor> updates;
    for (const std::string& name : training->updated()) {
      const Tensor& p = state->parameter(name).tensor;
      updates.emplace_back(p.dtype(), p.dims());
    }
    if (!overwrite) require_gradients("train_step");
    const RememberRandom remember{*this};
    const auto mode = overwrite ? StepModel::Gradients::replace : StepModel::Gradients::add;
    std::vector<RuntimeValue> results =
        training->run(inputs, tensors(training->parameters()), mode, gradient_buffers(), updates, random);
    for (std::size_t i = 0; i < updates.size(); ++i) state->set_parameter(training->updated()[i], updates[i]);
    overwrite = false;
    return results;
  }

  std::vector<Tensor> gradient_buffers() const {
    std::vector<Tensor> buffers;
    for (const std::string& name : training->trainable()) buffers.push_back(gradients.at(name));
    return buffers;
  }

  void remember_random() {
    const RandomRun next = random.peek();
    state->resume().seed = static_cast<std::int64_t>(next.seed);
    state->resume().random_counter = next.run;
  }

  void set_rate(float value) {
    if (!std::isfinite(value)) fail("learning rate: got ", value, ", expected a finite number");
    rate = value;
    state->resume().learning_rate = value;
  }

  void step() {
    require_optimizer();
    require_parameters("optimizer_step");
    require_gradients("optimizer_step");
    const std::vector<std::string>& names = training->trainable();
    std::vector<Tensor> grads;
    grads.reserve(names.size());
    for (const std::string& name : names) grads.push_back(gradients.at(name));
    OptimizerGroup& g = group();
    std::vector<std::vector<Tensor>> kept;
    for (const std::string& key : optimizer->state_names()) {
      kept.emplace_back();
      for (const std::string& name : names) kept.back().push_back(g.momentums.at(name).at(key));
    }
    const ThreadScope threads(options.num_threads);
    const Uninterrupted whole;  // all parameters move together
    optimizer->step(static_cast<double>(rate), g.step + 1, tensors(names), grads, kept);
    ++g.step;
    state->resume().learning_rate = rate;
  }
};

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
  auto it = impl_->gradients.find(parameter);
  if (it == impl_->gradients.end()) return std::nullopt;
  return it->second;
}

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
  onnx_io::WriteOptions options;
  if (impl_->state->uses_external_data()) options.external_data_threshold = 64;
  onnx_io::write_model(inference_model(*impl_->eval_proto, *impl_->state, outputs), path, options);
}

PlanReport TrainingSession::plan(std::span<const RuntimeValue> inputs) const {
  impl_->require_parameters("plan");
  return impl_->training->plan(inputs, impl_->tensors(impl_->training->parameters()), impl_->gradient_buffers());
}

std::vector<Report> TrainingSession::pass_reports() const { return impl_->training->pass_reports(); }

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
  impl_->allocate_gradients();
  impl_->allocate_momentums();
}

void set_seed(std::int64_t seed) { set_random_seed(static_cast<std::uint64_t>(seed)); }

}  // namespace backpass
