#include "training/step_model.hpp"

#include <algorithm>
#include <set>

#include "graph/clone.hpp"
#include "graph/halves.hpp"
#include "graph/overwriting.hpp"
#include "model/export.hpp"
#include "model/import.hpp"
#include "model/parameters.hpp"
#include "model/training_graph.hpp"
#include "onnx_io/writer.hpp"
#include "plan/lower.hpp"
#include "runtime/call_scope.hpp"
#include "runtime/options.hpp"
#include "runtime/value_info.hpp"
#include "training/training_plan.hpp"
#include "training/unwrap.hpp"

namespace backpass {

struct StepModel::Impl {
  SessionOptions options;
  std::int64_t opset = 0;
  std::unique_ptr<Graph> graph;         // after passes: what execution_model() writes
  std::unique_ptr<Graph> lowered;       // the same as it is planned; gradients are outputs
  std::unique_ptr<Graph> accumulating;  // lowered, with accumulators, once gradients were added up
  UpdateGraph updating;                 // lowered, with updates, once it was asked for
  std::optional<UpdateRule> rule;
  std::vector<Value*> user_inputs;
  std::vector<std::ptrdiff_t> sources;  // per graph input: index of the user's input, or -1 - index of the parameter
  mutable Profiler profiler;
  Reports reports;
  std::unique_ptr<TrainingPlan> planned;         // of `accumulating`, or of `lowered`
  std::unique_ptr<TrainingPlan> planned_update;  // of `updating`
  TrainingPlan* in_use = nullptr;
  Tensor replaces{DType::boolean, {1}};  // what the accumulators read

  std::unique_ptr<TrainingPlan> plan_of(const Graph& g) {
    return std::make_unique<TrainingPlan>(g, first_half(g), options, options.profile ? &profiler : nullptr);
  }

  /// Two arenas need not fit at once.
  void use(TrainingPlan& plan) {
    if (in_use != &plan) in_use->release_memory();
    in_use = &plan;
  }

  TrainingPlan& update_plan() {
    if (planned_update == nullptr) planned_update = plan_of(*updating.graph);
    return *planned_update;
  }
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
                     const SessionOptions& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->options = checked(options);
  CallScope call(options);
  Import import = import_model(model);
  throw_if_any(import.problems);
  impl_->opset = opset_of(model);
  impl_->graph = std::move(import.graph);
  Graph& graph = *impl_->graph;
  std::set<std::string> parameters;
  for (const Value* v : graph.inputs) {
    if (is_parameter(v->name)) parameters.insert(v->name);
  }
  Unwrapped names = unwrap_accumulators(graph, parameters);
  trainable_ = std::move(names.trainable);
  updated_ = std::move(names.updated);
  const std::size_t user_outputs = graph.outputs.size() - trainable_.size() - updated_.size();
  graph.first_gradient = user_outputs;
  graph.gradient_count = trainable_.size();
  for (Value* v : graph.inputs) {
    if (parameters.count(v->name) != 0) {
      impl_->sources.push_back(-1 - static_cast<std::ptrdiff_t>(parameters_.size()));
      parameters_.push_back(v->name);
      parameter_infos_.push_back(declared(*v));
    } else {
      impl_->sources.push_back(static_cast<std::ptrdiff_t>(inputs_.size()));
      inputs_.push_back(describe(*v));
      impl_->user_inputs.push_back(v);
    }
  }
  for (std::size_t i = 0; i < user_outputs; ++i) {
    outputs_.push_back(describe(*graph.outputs[i]));
    outputs_.back().name = model.graph.output[i].name;
  }
  PassManager passes({options.disabled_passes, options.verify_passes}, kEveryPass);
  if (options.optimize) passes.run(graph, Side::after);
  impl_->lowered = options.optimize ? lower(graph, passes) : clone(graph).graph;
  impl_->reports = passes.reports();
  impl_->planned = impl_->plan_of(*impl_->lowered);
  impl_->in_use = impl_->planned.get();
}

StepModel::~StepModel() = default;

namespace {

/// The node that follows this one; null at the end, and for none.
const Node* node_behind(const Graph& graph, const Node* node) {
  auto it = std::find(graph.nodes().begin(), graph.nodes().end(), node);
  return it == graph.nodes().end() || ++it == graph.nodes().end() ? nullptr : *it;
}

}  // namespace

/// Each gradient among the outputs gives way to its buffer, updated in place as soon as the gradient is there.
void StepModel::accumulate_in_place() {
  std::unique_ptr<Graph> accumulating = clone(*impl_->lowered).graph;
  Graph& graph = *accumulating;
  Value* replaces = graph.add_value(kResetFlag, Type::tensor(DType::boolean, Shape{1}));
  for (std::size_t i = 0; i < trainable_.size(); ++i) {
    Value*& output = graph.outputs[outputs_.size() + i];
    Value* buffer = graph.add_value(trainable_[i] + std::string(kBufferSuffix), output->type);
    Value* sum = graph.add_value(buffer->name + "_updated", output->type);
    graph.inputs.push_back(buffer);
    Node* node = graph.add_node("InPlaceAccumulatorV2", {buffer, output, replaces}, {nullptr, sum}, buffer->name,
                                "com.microsoft", node_behind(graph, output->producer));
    set_overwritten(*node, {-1, 0});
    output = sum;
  }
  graph.inputs.push_back(replaces);
  impl_->planned->release_memory();
  std::unique_ptr<TrainingPlan> planned = impl_->plan_of(graph);
  if (impl_->in_use == impl_->planned.get()) impl_->in_use = planned.get();
  impl_->planned = std::move(planned);
  impl_->accumulating = std::move(accumulating);
}

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
  if (impl_->accumulating == nullptr) return;
  values.insert(values.end(), gradients.begin(), gradients.end());
  values.emplace_back(impl_->replaces);
}

std::vector<RuntimeValue> StepModel::run(std::span<const RuntimeValue> user_inputs, std::span<const Tensor> parameters,
                                         Gradients mode, std::span<const Tensor> gradients,
                                         std::span<const Tensor> updates, RandomSource& random) {
  ensure(gradients.size() == trainable_.size() && updates.size() == updated_.size(), "StepModel::run: tensor counts");
  CallScope call(impl_->options);
  if (mode == Gradients::add && impl_->accumulating == nullptr && !trainable_.empty()) accumulate_in_place();
  *impl_->replaces.as<bool>() = mode == Gradients::replace;
  std::vector<RuntimeValue> values = arrange(user_inputs, parameters);
  add_buffers(values, gradients);
  std::vector<Tensor> wanted(outputs_.size());
  wanted.insert(wanted.end(), gradients.begin(), gradients.end());
  wanted.insert(wanted.end(), updates.begin(), updates.end());
  RandomScope scope(random);
  const std::shared_ptr<ReadyPlan> plan = bound(*impl_->planned, values);
  has_whole_gradients_ = false;
  std::vector<RuntimeValue> results = plan->executable->run(values, wanted);
  has_whole_gradients_ = true;
  results.resize(outputs_.size());
  return results;
}

/// What runs these values. What is wrong with them is found before anything is written.
std::shared_ptr<ReadyPlan> StepModel::bound(TrainingPlan& plan, std::span<const RuntimeValue> values) const {
  impl_->use(plan);
  std::shared_ptr<ReadyPlan> ready = plan.ready_for(values);
  ready->executable->binding_for(values);
  return ready;
}

void StepModel::set_update(std::optional<UpdateRule> rule) {
  if (impl_->planned_update != nullptr) impl_->use(*impl_->planned);
  impl_->planned_update.reset();
  impl_->updating = {};
  impl_->rule = std::move(rule);
}

const std::string& StepModel::update_obstacle() {
  UpdateGraph& updating = impl_->updating;
  if (updating.graph != nullptr || !updating.obstacle.empty()) return updating.obstacle;
  for (const std::string& name : trainable_) {
    if (std::find(updated_.begin(), updated_.end(), name) == updated_.end()) continue;
    updating.obstacle = concat("parameter '", name, "' is also a running statistic");
    return updating.obstacle;
  }
  ensure(impl_->rule.has_value(), "an update without a rule");
  updating = with_updates(*impl_->lowered, trainable_, *impl_->rule);
  return updating.obstacle;
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
  const std::shared_ptr<ReadyPlan> plan = bound(impl_->update_plan(), values);
  try {
    std::vector<RuntimeValue> results = plan->executable->run(values, wanted);
    results.resize(outputs_.size());
    return results;
  } catch (...) {
    has_half_updated_ = call.is_committed();
    throw;
  }
}

std::vector<Report> StepModel::pass_reports() const {
  std::vector<Report> reports = impl_->reports;
  const std::shared_ptr<ReadyPlan> plan = impl_->in_use->current();
  reports.insert(reports.end(), plan->reports.begin(), plan->reports.end());
  return reports;
}

std::string StepModel::execution_model() const {
  ExportOptions how;
  how.opset = std::max<std::int64_t>(how.opset, impl_->opset);
  for (const ValueInfo& output : outputs_) how.output_names.push_back(output.name);
  return onnx_io::write_model(export_graph(*impl_->graph, how));
}

std::vector<StepRecord> StepModel::take_profile() const { return impl_->profiler.take(); }

PlanReport StepModel::plan(std::span<const RuntimeValue> user_inputs, std::span<const Tensor> parameters,
                           std::span<const Tensor> gradients) const {
  CallScope call(impl_->options);
  std::vector<RuntimeValue> values = arrange(user_inputs, parameters);
  add_buffers(values, gradients);
  return impl_->planned->ready_for(values)->executable->plan(values);
}

PlanReport StepModel::plan_update(std::span<const RuntimeValue> user_inputs, std::span<const Tensor> parameters,
                                  const UpdateArguments& update) {
  CallScope call(impl_->options);
  std::vector<RuntimeValue> values = arrange(user_inputs, parameters);
  add_arguments(values, update);
  return impl_->update_plan().ready_for(values)->executable->plan(values);
}

}  // namespace backpass
