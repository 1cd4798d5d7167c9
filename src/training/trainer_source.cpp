#include "training/trainer_source.hpp"

#include <algorithm>
#include <cstring>
#include <set>

#include "gradient/activity.hpp"
#include "model/export.hpp"
#include "model/import.hpp"
#include "model/inference_form.hpp"
#include "model/needed_part.hpp"
#include "model/parameters.hpp"
#include "model/training_graph.hpp"
#include "support/printable.hpp"
#include "training/read_source.hpp"

namespace backpass {
namespace {

using Names = std::vector<std::string>;

/// Adds a name if it is not there, and says where it is.
std::size_t place_of(Names& names, const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  names.push_back(name);
  return names.size() - 1;
}

onnx_io::ModelProto needed_model(const TrainerModel& model, const Names& outputs) {
  onnx_io::ModelProto proto = read_source(model.model);
  keep_needed(proto.graph, outputs, "trainer");
  return proto;
}

bool is_initializer(const onnx_io::GraphProto& graph, const std::string& name) {
  return std::any_of(graph.initializer.begin(), graph.initializer.end(), [&](const auto& t) { return t.name == name; });
}

/// What is named as an initializer, or as an input.
std::set<std::string> givens(const onnx_io::GraphProto& graph) {
  std::set<std::string> names;
  for (const onnx_io::ValueInfoProto& input : graph.input) names.insert(input.name);
  for (const onnx_io::TensorProto& t : graph.initializer) names.insert(t.name);
  return names;
}

struct Differentiable {
  std::set<std::string> inputs;
  DType loss = DType::undefined;
};

/// The inputs, and those of these initializers, that an output depends on differentiably.
Differentiable differentiable(onnx_io::ModelProto model, const std::string& loss, const Names& initializers) {
  move_to_inputs(model.graph, initializers);
  model.graph.output.assign(1, {});
  model.graph.output[0].name = loss;
  Import import = import_model(model);
  throw_if_any(import.problems, model.opening);
  Differentiable found;
  const Value* value = import.graph->outputs[0];
  found.loss = value->type.dtype;
  const ValueSet needed = needed_for(*import.graph, {value});
  for (const Value* input : import.graph->inputs) {
    if (needed.contains(input) && carries_gradient(input)) found.inputs.insert(input->name);
  }
  return found;
}

/// Multiplies the loss by an input, and returns the name of the product.
std::string scale_loss(onnx_io::GraphProto& graph, const std::string& loss, DType dtype) {
  onnx_io::ValueInfoProto scale;
  scale.name = kLossScale;
  scale.type.kind = onnx_io::TypeProto::Kind::tensor;
  scale.type.elem_type = dtype;
  scale.type.shape.emplace();
  graph.input.push_back(scale);
  onnx_io::NodeProto product;
  product.op_type = "Mul";
  product.name = "backpass.scale_loss";
  product.input = {loss, scale.name};
  product.output = {"backpass.scaled_loss"};
  graph.node.push_back(product);
  return product.output[0];
}

TrainingRequest request_for(const onnx_io::GraphProto& graph, const CheckpointState& state,
                            const std::set<std::string>& differentiable) {
  TrainingRequest request;
  const std::set<std::string> given = givens(graph);
  for (const Parameter& p : state.parameters()) {
    if (!given.contains(p.name)) continue;
    if (p.requires_grad && differentiable.contains(p.name)) {
      request.requires_grad.push_back(p.name);
    } else if (is_initializer(graph, p.name)) {
      request.frozen.push_back(p.name);
    }
  }
  return request;
}

/// Memory that training may write to: a file's is not.
Tensor own_copy(const Tensor& source) {
  Tensor copy(source.dtype(), source.dims());
  if (copy.bytes() > 0) std::memcpy(copy.mutable_data(), source.data(), copy.bytes());
  return copy;
}

Names names_of(const CheckpointState& state, const onnx_io::GraphProto& graph) {
  Names names;
  for (const Parameter& p : state.parameters()) {
    if (is_initializer(graph, p.name)) names.push_back(p.name);
  }
  return names;
}

}  // namespace

TrainerSource training_source(const TrainerModel& model, const CheckpointState& state, bool scales_loss) {
  if (model.loss.empty()) fail("trainer: got no name of a loss, expected that of a scalar result");
  TrainerSource source;
  source.outputs = {model.loss};
  for (const std::string& name : model.outputs) source.returned.push_back(place_of(source.outputs, name));
  for (const auto& [output, parameter] : model.assigned) {
    source.assignments.push_back({place_of(source.outputs, output), parameter});
  }
  onnx_io::ModelProto proto = needed_model(model, source.outputs);
  const Differentiable found = differentiable(proto, model.loss, names_of(state, proto.graph));
  TrainingRequest request = request_for(proto.graph, state, found.inputs);
  request.outputs = source.outputs;
  if (request.requires_grad.empty()) {
    fail("trainer: loss ", printable(model.loss), " depends on none of the weights to train; expected one at least");
  }
  if (scales_loss) {  // an output more, before the others
    request.outputs.insert(request.outputs.begin(), scale_loss(proto.graph, model.loss, found.loss));
    for (std::size_t& i : source.returned) ++i;
    for (TrainerSource::Assignment& a : source.assignments) ++a.output;
    source.outputs = request.outputs;
  }
  source.model = build_training_model(proto, request);
  return source;
}

TrainerSource eval_source(const TrainerModel& model, const CheckpointState& state, bool to_inference) {
  TrainerSource source;
  for (const std::string& name : model.outputs) source.returned.push_back(place_of(source.outputs, name));
  source.model = read_source(model.model);
  if (to_inference) make_inference_form(source.model);
  keep_needed(source.model.graph, source.outputs, "trainer");
  move_to_inputs(source.model.graph, names_of(state, source.model.graph));
  std::vector<onnx_io::ValueInfoProto> declared;
  for (const std::string& name : source.outputs) {
    const auto& known = source.model.graph.output;
    const auto it = std::find_if(known.begin(), known.end(), [&](const auto& v) { return v.name == name; });
    declared.push_back(it != known.end() ? *it : onnx_io::ValueInfoProto{});
    declared.back().name = name;
  }
  source.model.graph.output = std::move(declared);
  return source;
}

std::shared_ptr<CheckpointState> Trainer::state_of(const ModelSource& model, const std::string& loss,
                                                   std::span<const std::string> frozen) {
  onnx_io::ModelProto proto = read_source(model);
  std::string problems;
  for (const std::string& name : frozen) {
    if (is_initializer(proto.graph, name)) continue;
    problems += concat("\nfrozen weight ", printable(name), ": got a name that no initializer of the model has");
  }
  if (!problems.empty()) fail(problems.substr(1));
  keep_needed(proto.graph, std::vector<std::string>{loss}, "trainer");
  Names names;
  for (const onnx_io::TensorProto& t : proto.graph.initializer) {
    if (is_float(t.data_type) && !t.dims.empty()) names.push_back(t.name);
  }
  const std::set<std::string> found = differentiable(proto, loss, names).inputs;
  const Names statistics = running_statistics(proto);
  auto is_among = [](const auto& all, const std::string& name) {
    return std::find(all.begin(), all.end(), name) != all.end();
  };
  auto state = std::make_shared<CheckpointState>();
  for (const onnx_io::TensorProto& t : proto.graph.initializer) {
    const bool stays = is_among(frozen, t.name) || is_among(statistics, t.name);
    if (!stays && !(is_among(names, t.name) && found.contains(t.name))) continue;
    state->add_parameter(t.name, own_copy(to_tensor(t)), !stays);
  }
  return state;
}

}  // namespace backpass
