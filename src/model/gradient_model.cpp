#include "model/gradient_model.hpp"

#include <algorithm>
#include <map>

#include "gradient/activity.hpp"
#include "gradient/containers.hpp"
#include "gradient/reverse.hpp"
#include "model/export.hpp"
#include "model/import.hpp"
#include "model/parameters.hpp"
#include "onnx_io/reader.hpp"
#include "onnx_io/writer.hpp"
#include "ops/custom/function_gradient.hpp"

namespace backpass {
namespace {

/// A graph in which the initializers to be differentiated are inputs, so that nothing computed from them is folded.
struct Opened {
  std::unique_ptr<Graph> graph;
  std::vector<Problem> problems;
  std::vector<Value*> wrt;
  std::vector<Value*> outputs;
  std::vector<std::string> output_names;
  std::vector<std::pair<Value*, Tensor>> initial;  // inputs that were initializers
};

void note(Opened& opened, std::string text) {
  opened.problems.push_back({Problem::Kind::invalid, "", "", std::move(text)});
}

/// Places of the outputs to differentiate, in the order they were asked for.
std::vector<std::size_t> places_of(const onnx_io::GraphProto& proto, const GradientRequest& request, Opened& opened) {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; request.outputs.empty() && i < proto.output.size(); ++i) {
    if (holds_floats(opened.graph->outputs[i]->type)) places.push_back(i);
  }
  for (const std::string& name : request.outputs) {
    auto it = std::find_if(proto.output.begin(), proto.output.end(), [&](const auto& o) { return o.name == name; });
    const auto place = static_cast<std::size_t>(it - proto.output.begin());
    if (it == proto.output.end()) {
      note(opened, concat("output '", name, "': got a name the model does not have, expected an output"));
    } else if (std::find(places.begin(), places.end(), place) == places.end()) {
      places.push_back(place);
    }
  }
  return places;
}

void find_outputs(const onnx_io::GraphProto& proto, const GradientRequest& request, Opened& opened) {
  for (std::size_t i : places_of(proto, request, opened)) {
    Value* v = opened.graph->outputs[i];
    const std::string& name = proto.output[i].name;
    opened.outputs.push_back(v);
    opened.output_names.push_back(name);
    // What inference does not know of an output, the model may have stated.
    if (v->type.is_tensor() && !v->type.shape) v->type.shape = to_type(proto.output[i].type, name).shape;
  }
  if (opened.outputs.empty())
    note(opened, "outputs: got none that hold floats, expected at least one to differentiate");
}

Opened open(const onnx_io::ModelProto& model, const GradientRequest& request) {
  Opened opened;
  if (request.wrt.empty()) {
    note(opened, "wrt: got no names, expected at least one input, initializer or result of a node");
    return opened;
  }
  onnx_io::ModelProto copy = model;  // tensors share their data
  std::map<std::string, Tensor> freed;
  for (const onnx_io::TensorProto& t : move_to_inputs(copy.graph, request.wrt)) {
    freed.emplace(t.name, to_tensor(t));
  }
  Import import = import_model(copy);
  opened.problems = std::move(import.problems);
  if (!opened.problems.empty()) return opened;
  opened.graph = std::move(import.graph);
  std::map<std::string, Value*> by_name;
  for (const auto& v : opened.graph->values()) by_name.emplace(v->name, v.get());
  for (const std::string& name : request.wrt) {
    auto it = by_name.find(name);
    if (it == by_name.end()) {
      note(opened, concat("wrt '", name,
                          "': got a name the model does not have, expected an input, an initializer or "
                          "the result of a node"));
      continue;
    }
    opened.wrt.push_back(it->second);
    if (auto tensor = freed.find(name); tensor != freed.end()) opened.initial.emplace_back(it->second, tensor->second);
  }
  find_outputs(copy.graph, request, opened);
  return opened;
}

std::vector<Problem> all_problems(const Opened& opened, const GradientRequest& request) {
  if (!opened.problems.empty()) return opened.problems;
  return gradient_problems(*opened.graph, opened.outputs, opened.wrt, {request.standard_only});
}

std::vector<Value*> make_seeds(Opened& opened) {
  std::vector<Value*> seeds;
  for (std::size_t k = 0; k < opened.outputs.size(); ++k) {
    const Type& type = gradient_type(opened.outputs[k]->type);
    Value* seed = opened.graph->add_value(opened.output_names[k] + "_grad", type);
    opened.graph->inputs.push_back(seed);
    seeds.push_back(seed);
  }
  return seeds;
}

}  // namespace

std::vector<Problem> gradient_problems(const onnx_io::ModelProto& model, const GradientRequest& request) {
  Opened opened = open(model, request);
  std::vector<Problem> problems = all_problems(opened, request);
  if (!problems.empty()) return problems;
  // What bodies hold, and ranks that rules need, only a trial tells.
  auto note = [&](Problem::Kind kind, const Error& e) { problems.push_back({kind, "", "", e.what()}); };
  try {
    add_gradients(*opened.graph, opened.outputs, {}, opened.wrt, {request.standard_only});
  } catch (const Unsupported& e) {
    note(Problem::Kind::unsupported, e);
  } catch (const InvalidInput& e) {
    note(Problem::Kind::invalid, e);
  }
  return problems;
}

onnx_io::ModelProto gradient_model(const onnx_io::ModelProto& model, const GradientRequest& request) {
  Opened opened = open(model, request);
  throw_if_any(all_problems(opened, request), model.opening);
  Graph& graph = *opened.graph;
  std::vector<Value*> seeds = request.seeds_as_inputs ? make_seeds(opened) : std::vector<Value*>();
  std::vector<Value*> gradients = add_gradients(graph, opened.outputs, seeds, opened.wrt, {request.standard_only});
  graph.outputs = opened.outputs;
  graph.outputs.insert(graph.outputs.end(), gradients.begin(), gradients.end());
  for (auto& [value, tensor] : opened.initial) {
    std::erase(graph.inputs, value);
    value->constant = tensor;
  }
  graph.remove_dead_nodes();

  ExportOptions options;
  options.opset = std::max<std::int64_t>(options.opset, opset_of(model));
  options.output_names = opened.output_names;
  for (const Value* gradient : gradients) options.output_names.push_back(gradient->name);
  remove_function_gradients(graph);
  onnx_io::ModelProto result = export_graph(graph, options);
  result.domain = model.domain;
  return result;
}

std::string grad(const std::filesystem::path& model, const GradientRequest& request) {
  return onnx_io::write_model(gradient_model(onnx_io::read_model(model), request));
}

std::string grad(std::string_view model, const GradientRequest& request) {
  return onnx_io::write_model(gradient_model(onnx_io::read_model(model, nullptr), request));
}

std::vector<Problem> check_gradients(const std::filesystem::path& model, const GradientRequest& request) {
  return gradient_problems(onnx_io::read_model(model), request);
}

std::vector<Problem> check_gradients(std::string_view model, const GradientRequest& request) {
  return gradient_problems(onnx_io::read_model(model, nullptr), request);
}

}  // namespace backpass
