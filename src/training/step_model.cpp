#include "training/step_model.hpp"

#include <algorithm>

#include "model/export.hpp"
#include "onnx_io/writer.hpp"
#include "runtime/call_scope.hpp"
#include "runtime/options.hpp"
#include "runtime/value_info.hpp"
#include "training/rewritten_model.hpp"
#include "training/step_variants.hpp"

namespace backpass {

struct StepModel::Impl {
  SessionOptions options;
  StepSource source;
  mutable Profiler profiler;
  mutable StepVariants variants;
  std::vector<Value*> user_inputs;
  std::vector<std::ptrdiff_t> sources;   // per graph input: index of the user's input, or -1 - index of the parameter
  Tensor replaces{DType::boolean, {1}};  // what the accumulators read

  Impl(const onnx_io::ModelProto& model, const std::function<bool(const std::string&)>& is_parameter,
       const SessionOptions& o)
      : options(checked(o)),
        source(model, is_parameter, o.optimize),
        variants(source, options, options.profile ? &profiler : nullptr) {}
};

namespace {

ParameterInfo declared(const Value& v) {
  if (!v.type.is_tensor() || !v.type.shape || !is_known(*v.type.shape)) {
    fail("parameter '", v.name, "': got ", v.type.str(), " in the model, expected a tensor of known shape");
  }
  return {v.name, v.type.dtype, to_dims(*v.type.shape)};
}

}  // namespace

StepModel::StepModel(const onnx_io::ModelProto& model, const std::function<bool(const std::string&)>& is_parameter,
                     const SessionOptions& options) {
  CallScope call(checked(options));
  impl_ = std::make_unique<Impl>(model, is_parameter, options);
  const StepSource& source = impl_->source;
  trainable_ = source.names().trainable;
  updated_ = source.names().updated;
  for (Value* v : source.graph().inputs) {
    if (source.is_parameter(v)) {
      impl_->sources.push_back(-1 - static_cast<std::ptrdiff_t>(parameters_.size()));
      parameters_.push_back(v->name);
      parameter_infos_.push_back(declared(*v));
    } else {
      impl_->sources.push_back(static_cast<std::ptrdiff_t>(inputs_.size()));
      inputs_.push_back(describe(*v));
      impl_->user_inputs.push_back(v);
    }
  }
  for (std::size_t i = 0; i < source.user_outputs(); ++i) {
    outputs_.push_back(describe(*source.graph().outputs[i]));
    outputs_.back().name = source.user_output_names()[i];
  }
}

StepModel::~StepModel() = default;

/// What all graphs read, in the order of their inputs.
std::vector<RuntimeValue> StepModel::arrange(std::span<const RuntimeValue> user_inputs,
                                             std::span<const Tensor> parameters) const {
  if (user_inputs.size() != inputs_.size()) {
    fail("number of inputs: got ", user_inputs.size(), ", expected ", inputs_.size());
  }
  std::string problems;
  for (std::size_t i = 0; i < user_inputs.size(); ++i) problems += mismatch(*impl_->user_inputs[i], user_inputs[i]);
  if (!problems.empty()) fail(problems.substr(1));
  std::vector<RuntimeValue> values;
  values.reserve(impl_->sources.size() + 3 * trainable_.size() + 2);
  for (std::ptrdiff_t source : impl_->sources) {
    if (source >= 0) {
      values.push_back(user_inputs[static_cast<std::size_t>(source)]);
    } else {
      values.emplace_back(parameters[static_cast<std::size_t>(-1 - source)]);
    }
  }
  return values;
}

void StepModel::add_buffers(std::vector<RuntimeValue>& values, std::span<const Tensor> gradients) const {
  if (!impl_->variants.accumulates()) return;
  values.insert(values.end(), gradients.begin(), gradients.end());
  values.emplace_back(impl_->replaces);
}

std::vector<RuntimeValue> StepModel::run(std::span<const RuntimeValue> user_inputs, std::span<const Tensor> parameters,
                                         Gradients mode, std::span<const Tensor> gradients,
                                         std::span<const Tensor> updates, RandomSource& random) {
  ensure(gradients.size() == trainable_.size() && updates.size() == updated_.size(), "StepModel::run: tensor counts");
  CallScope call(impl_->options);
  if (mode == Gradients::add && !trainable_.empty()) impl_->variants.accumulate();
  *impl_->replaces.as<bool>() = mode == Gradients::replace;
  std::vector<RuntimeValue> values = arrange(user_inputs, parameters);
  add_buffers(values, gradients);
  std::vector<Tensor> wanted(outputs_.size());
  wanted.insert(wanted.end(), gradients.begin(), gradients.end());
  wanted.resize(wanted.size() + impl_->variants.bucket_count());
  wanted.insert(wanted.end(), updates.begin(), updates.end());
  RandomScope scope(random);
  const std::shared_ptr<ReadyPlan> plan = impl_->variants.ready_for(values, StepPurpose::gradients);
  has_whole_gradients_ = false;
  std::vector<RuntimeValue> results = plan->executable->run(values, wanted);
  has_whole_gradients_ = true;
  results.resize(outputs_.size());
  return results;
}

std::vector<std::size_t> StepModel::completion_order() const { return impl_->variants.completion_order(); }

void StepModel::set_buckets(std::vector<std::vector<std::size_t>> buckets) {
  impl_->variants.set_buckets(std::move(buckets));
}

void StepModel::set_update(std::optional<UpdateRule> rule) {
  impl_->variants.set_update(std::move(rule));
  statistic_obstacle_.clear();
  for (const std::string& name : trainable_) {
    if (std::find(updated_.begin(), updated_.end(), name) == updated_.end()) continue;
    statistic_obstacle_ = concat("parameter '", name, "' is also a running statistic");
    return;
  }
}

const std::string& StepModel::update_obstacle() {
  return statistic_obstacle_.empty() ? impl_->variants.update_obstacle() : statistic_obstacle_;
}

namespace {

void add_arguments(std::vector<RuntimeValue>& values, const UpdateArguments& update) {
  values.emplace_back(Tensor::from<double>(DType::float64, {1}, std::vector<double>{update.rate}));
  values.emplace_back(Tensor::from<std::int64_t>(DType::int64, {1}, std::vector<std::int64_t>{update.step}));
  for (const std::vector<Tensor>& state : update.states) values.insert(values.end(), state.begin(), state.end());
}

}  // namespace

std::vector<RuntimeValue> StepModel::run_and_update(std::span<const RuntimeValue> user_inputs,
                                                    std::span<const Tensor> parameters, const UpdateArguments& update,
                                                    std::span<const Tensor> updates, RandomSource& random) {
  ensure(update.parameters.size() == trainable_.size() && updates.size() == updated_.size(),
         "StepModel::run_and_update: tensor counts");
  CallScope call(impl_->options);
  std::vector<RuntimeValue> values = arrange(user_inputs, parameters);
  add_arguments(values, update);
  std::vector<Tensor> wanted(outputs_.size());
  wanted.insert(wanted.end(), update.parameters.begin(), update.parameters.end());
  for (const std::vector<Tensor>& state : update.states) wanted.insert(wanted.end(), state.begin(), state.end());
  wanted.insert(wanted.end(), updates.begin(), updates.end());
  RandomScope scope(random);
  const std::shared_ptr<ReadyPlan> plan = impl_->variants.ready_for(values, StepPurpose::update);
  try {
    std::vector<RuntimeValue> results = plan->executable->run(values, wanted);
    results.resize(outputs_.size());
    return results;
  } catch (...) {
    has_half_updated_ = call.is_committed();
    throw;
  }
}

std::vector<Report> StepModel::pass_reports() const { return impl_->variants.reports(); }

DataReport StepModel::data_report() const { return impl_->variants.data_report(); }

std::string StepModel::execution_model() const {
  return onnx_io::write_model(impl_->source.written(impl_->variants.latest().graph()));
}

onnx_io::ModelProto StepModel::rewritten_model() const {
  const CallScope call(impl_->options);
  return backpass::rewritten_model(impl_->source, impl_->options);
}

std::vector<StepRecord> StepModel::take_profile() const { return impl_->profiler.take(); }

PlanReport StepModel::plan(std::span<const RuntimeValue> user_inputs, std::span<const Tensor> parameters,
                           std::span<const Tensor> gradients) const {
  CallScope call(impl_->options);
  std::vector<RuntimeValue> values = arrange(user_inputs, parameters);
  add_buffers(values, gradients);
  return impl_->variants.plan_for(values, StepPurpose::gradients)->executable->plan(values);
}

PlanReport StepModel::plan_update(std::span<const RuntimeValue> user_inputs, std::span<const Tensor> parameters,
                                  const UpdateArguments& update) {
  CallScope call(impl_->options);
  std::vector<RuntimeValue> values = arrange(user_inputs, parameters);
  add_arguments(values, update);
  return impl_->variants.plan_for(values, StepPurpose::update)->executable->plan(values);
}

}  // namespace backpass
