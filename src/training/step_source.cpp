#include "training/step_source.hpp"

#include <algorithm>

#include "graph/clone.hpp"
#include "model/export.hpp"
#include "model/import.hpp"
#include "model/parameters.hpp"

namespace backpass {

StepSource::StepSource(const onnx_io::ModelProto& model, const std::function<bool(const std::string&)>& is_parameter,
                       bool optimize)
    : opset_(opset_of(model)) {
  Import import = import_model(model);
  throw_if_any(import.problems, model.opening);
  graph_ = std::move(import.graph);
  for (const Value* v : graph_->inputs) {
    if (is_parameter(v->name)) parameters_.insert(v->name);
  }
  names_ = unwrap_accumulators(*graph_, parameters_);
  const std::size_t count = graph_->outputs.size() - names_.trainable.size() - names_.updated.size();
  for (std::size_t i = 0; i < count; ++i) user_outputs_.push_back(model.graph.output[i].name);
  graph_->first_gradient = count;
  graph_->gradient_count = names_.trainable.size();
  if (optimize && !names_.trainable.empty()) forward_ = forward_part(*graph_, names_.trainable, model);
}

bool StepSource::is_parameter(const Value* input) const { return parameters_.count(input->name) != 0; }

const Graph* StepSource::forward() const { return names_.trainable.empty() ? graph_.get() : forward_.graph.get(); }

std::unique_ptr<Graph> StepSource::rewritten(PassManager& passes) const {
  if (names_.trainable.empty()) {
    std::unique_ptr<Graph> graph = clone(*graph_).graph;
    passes.run(*graph, Side::both);
    return graph;
  }
  std::unique_ptr<Graph> graph = forward_.graph == nullptr ? nullptr : clone(*forward_.graph).graph;
  if (graph != nullptr) passes.run(*graph, Side::before);
  if (graph != nullptr && !computes_alike(*graph, *forward_.graph)) {
    add_training_gradients(*graph, user_outputs(), names_.trainable);
  } else {
    graph = clone(*graph_).graph;
  }
  passes.run(*graph, Side::after);
  return graph;
}

onnx_io::ModelProto StepSource::written(const Graph& graph) const {
  ExportOptions how;
  how.opset = std::max<std::int64_t>(how.opset, opset_);
  how.output_names = user_outputs_;
  return export_graph(graph, how);
}

onnx_io::ModelProto StepSource::training_model(PassManager& passes) const {
  if (forward_.graph == nullptr) {
    const Report& why = forward_.refusal;
    fail<Unsupported>("training model: its gradients have to stay as they are, so nothing is left out: ", why.node,
                      why.node.empty() ? "" : " ", why.why);
  }
  std::unique_ptr<Graph> graph = clone(*forward_.graph).graph;
  passes.run(*graph, Side::before);
  add_training_gradients(*graph, user_outputs(), names_.trainable);
  ExportOptions how;
  how.opset = std::max<std::int64_t>(how.opset, opset_);
  how.output_names = user_outputs_;
  const std::vector<std::string> flags = wrap_accumulators(*graph, names_);
  how.output_names.insert(how.output_names.end(), flags.begin(), flags.end());
  return export_graph(*graph, how);
}

}  // namespace backpass
