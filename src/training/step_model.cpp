#include "training/step_model.hpp"

#include <algorithm>
#include <set>

#include "gradient/training_graph.hpp"
#include "graph/graph.hpp"
#include "onnx_io/import.hpp"
#include "passes/pipeline.hpp"
#include "plan/program.hpp"
#include "runtime/executable.hpp"
#include "runtime/value_info.hpp"
#include "support/parallel.hpp"

namespace backpass {

struct StepModel::Impl {
  SessionOptions options;
  std::unique_ptr<Graph> graph;
  std::vector<Value*> user_inputs;
  std::vector<std::ptrdiff_t> sources;  // per graph input: index of the user's input, or -1 - index of the parameter
  mutable Profiler profiler;
  std::unique_ptr<Program> program;
  std::unique_ptr<Executable> executable;
};

namespace {

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() > end.size() && std::string_view(text).ends_with(end);
}

bool is_true(const Value* flag) {
  return flag != nullptr && flag->constant && flag->constant->size() == 1 &&
         flag->constant->dtype() == DType::boolean && *flag->constant->as<bool>();
}

bool is_accumulator(const Value* v) {
  return v->producer != nullptr && v->producer->op == "InPlaceAccumulatorV2" && v->producer->domain == "com.microsoft";
}

ParameterInfo declared(const Value& v) {
  if (!v.type.is_tensor() || !v.type.shape || !is_known(*v.type.shape)) {
    fail("parameter '", v.name, "': got ", v.type.str(), " in the model, expected a tensor of known shape");
  }
  return {v.name, v.type.dtype, to_dims(*v.type.shape)};
}

/// Replaces the flags of accumulators among the outputs by what they accumulate.
class Unwrapping {
 public:
  explicit Unwrapping(Graph& graph) : graph_(graph) {}

  std::vector<std::string> trainable;
  std::vector<std::string> updated;

  void run(const std::set<std::string>& parameters) {
    std::vector<Value*> user;
    std::vector<Value*> gradients;
    std::vector<Value*> updates;
    for (Value* v : graph_.outputs) {
      if (!is_accumulator(v)) {
        user.push_back(own(v));
        continue;
      }
      const Node& node = *v->producer;
      const Value* target = node.inputs.at(0);
      if (ends_with(target->name, kBufferSuffix)) {
        trainable.push_back(target->name.substr(0, target->name.size() - kBufferSuffix.size()));
        gradients.push_back(own(node.inputs.at(1)));
      } else if (parameters.count(target->name) != 0 && is_true(node.input(2))) {
        updated.push_back(target->name);
        updates.push_back(own(node.inputs.at(1)));
      } else {
        fail<Unsupported>(node.label(), " accumulates into '", target->name,
                          "': expected a gradient buffer or a parameter that is overwritten");
      }
    }
    graph_.outputs = std::move(user);
    graph_.outputs.insert(graph_.outputs.end(), gradients.begin(), gradients.end());
    graph_.outputs.insert(graph_.outputs.end(), updates.begin(), updates.end());
    graph_.remove_dead_nodes();
    drop_buffers();
  }

 private:
  /// Every output has a value to itself, computed by a node, so that each can have its own memory.
  Value* own(Value* v) {
    if (v->producer != nullptr && taken_.insert(v).second) return v;
    Value* copy = graph_.add_value(v->name + "_copy", v->type);
    graph_.add_node("Identity", {v}, {copy}, v->name + "_copy");
    taken_.insert(copy);
    return copy;
  }

  void drop_buffers() {
    std::erase_if(graph_.inputs,
                  [&](const Value* v) { return ends_with(v->name, kBufferSuffix) || v->name == kResetFlag; });
  }

  Graph& graph_;
  std::set<const Value*> taken_;
};

}  // namespace

StepModel::StepModel(const onnx_io::ModelProto& model, const std::function<bool(const std::string&)>& is_parameter,
                     const SessionOptions& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  ThreadScope threads(options.num_threads);
  onnx_io::Import import = onnx_io::import_model(model);
  throw_if_any(import.problems);
  impl_->graph = std::move(import.graph);
  Graph& graph = *impl_->graph;
  std::set<std::string> parameters;
  for (const Value* v : graph.inputs) {
    if (is_parameter(v->name)) parameters.insert(v->name);
  }
  Unwrapping unwrapping(graph);
  unwrapping.run(parameters);
  trainable_ = std::move(unwrapping.trainable);
  updated_ = std::move(unwrapping.updated);
  const std::size_t user_outputs = graph.outputs.size() - trainable_.size() - updated_.size();
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
  if (options.optimize) optimize(graph);
  impl_->program = make_program(graph);
  impl_->executable = std::make_unique<Executable>(*impl_->program, options.binding_cache,
                                                   options.profile ? &impl_->profiler : nullptr);
}

StepModel::~StepModel() = default;

std::vector<RuntimeValue> StepModel::arrange(std::span<const RuntimeValue> user_inputs,
                                             std::span<const Tensor> parameters) const {
  if (user_inputs.size() != inputs_.size()) {
    fail("number of inputs: got ", user_inputs.size(), ", expected ", inputs_.size());
  }
  std::string problems;
  for (std::size_t i = 0; i < user_inputs.size(); ++i) problems += mismatch(*impl_->user_inputs[i], user_inputs[i]);
  if (!problems.empty()) fail(problems.substr(1));
  std::vector<RuntimeValue> values;
  values.reserve(impl_->sources.size());
  for (std::ptrdiff_t source : impl_->sources) {
    if (source >= 0) {
      values.push_back(user_inputs[static_cast<std::size_t>(source)]);
    } else {
      values.emplace_back(parameters[static_cast<std::size_t>(-1 - source)]);
    }
  }
  return values;
}

std::vector<RuntimeValue> StepModel::run(std::span<const RuntimeValue> user_inputs, std::span<const Tensor> parameters,
                                         std::span<const Tensor> gradients, std::span<const Tensor> updates,
                                         RandomSource& random) const {
  ensure(gradients.size() == trainable_.size() && updates.size() == updated_.size(), "StepModel::run: tensor counts");
  std::vector<RuntimeValue> values = arrange(user_inputs, parameters);
  std::vector<Tensor> wanted(outputs_.size());
  wanted.insert(wanted.end(), gradients.begin(), gradients.end());
  wanted.insert(wanted.end(), updates.begin(), updates.end());
  ThreadScope threads(impl_->options.num_threads);
  RandomScope scope(random);
  std::vector<RuntimeValue> results = impl_->executable->run(values, wanted);
  results.resize(outputs_.size());
  return results;
}

std::vector<StepRecord> StepModel::take_profile() const { return impl_->profiler.take(); }

PlanReport StepModel::plan(std::span<const RuntimeValue> user_inputs, std::span<const Tensor> parameters) const {
  ThreadScope threads(impl_->options.num_threads);
  std::shared_ptr<const Binding> binding = impl_->executable->binding_for(arrange(user_inputs, parameters));
  PlanReport report = binding->report;
  report.text = describe_plan(*binding);
  return report;
}

}  // namespace backpass
