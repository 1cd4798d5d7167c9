#include "model/training_graph.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "backpass/problem.hpp"
#include "gradient/reverse.hpp"
#include "graph/builder.hpp"
#include "model/export.hpp"
#include "model/import.hpp"
#include "model/inference_form.hpp"
#include "model/parameters.hpp"
#include "ops/custom/function_gradient.hpp"

namespace backpass {
namespace {

using Names = std::vector<std::string>;

bool contains(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <class Items>
bool names_one_of(const Items& items, const std::string& name) {
  return std::any_of(items.begin(), items.end(), [&](const auto& item) { return item.name == name; });
}

void check_names(const onnx_io::GraphProto& graph, const TrainingRequest& request) {
  std::vector<Problem> problems;
  auto note = [&](std::string text) { problems.push_back({Problem::Kind::invalid, "", "", std::move(text)}); };
  for (const std::string& name : request.requires_grad) {
    if (contains(request.frozen, name)) note(concat("parameter '", name, "': got it both trainable and frozen"));
    if (names_one_of(graph.initializer, name) || names_one_of(graph.input, name)) continue;
    note(concat("requires_grad '", name, "': got a name the model does not have, expected an initializer or an input"));
  }
  for (const std::string& name : request.frozen) {
    if (names_one_of(graph.initializer, name)) continue;
    note(concat("frozen parameter '", name, "': got a name the model does not have, expected an initializer"));
  }
  if (request.outputs.empty()) note("outputs: got none, expected the loss at least");
  throw_if_any(problems);
}

void set_outputs(onnx_io::GraphProto& graph, const Names& names) {
  std::vector<onnx_io::ValueInfoProto> outputs;
  for (const std::string& name : names) {
    onnx_io::ValueInfoProto info;
    info.name = name;
    for (const auto* known : {&graph.output, &graph.value_info}) {
      auto it = std::find_if(known->begin(), known->end(), [&](const auto& v) { return v.name == name; });
      if (it != known->end() && info.type.kind == onnx_io::TypeProto::Kind::none) info = *it;
    }
    outputs.push_back(std::move(info));
  }
  graph.output = std::move(outputs);
}

std::unique_ptr<Graph> import_or_throw(const onnx_io::ModelProto& model) {
  Import import = import_model(model);
  throw_if_any(import.problems, model.opening);
  return std::move(import.graph);
}

void check_loss(const Value& loss) {
  const Type& t = loss.type;
  const bool is_scalar =
      t.is_tensor() && is_float(t.dtype) && t.shape &&
      std::all_of(t.shape->begin(), t.shape->end(), [](const Dim& d) { return d.is(1) || !d.is_known(); });
  if (is_scalar) return;
  fail("loss '", loss.name, "': got ", t.str(),
       ", expected a scalar of a float type; reduce it, or name the scalar first among the outputs");
}

/// Adds to a graph what makes it a training graph.
class Assembly {
 public:
  Assembly(Graph& graph, const TrainingRequest& request) : graph_(graph), request_(request) {
    for (Value* v : graph.inputs) {
      if (contains(request.requires_grad, v->name)) trainable_.push_back(v);
    }
  }

  Names run() {
    Value* loss = graph_.outputs.at(0);
    check_loss(*loss);
    std::vector<Value*> losses = {loss};
    std::vector<Value*> gradients;
    if (!trainable_.empty()) gradients = add_gradients(graph_, losses, {}, trainable_);
    Names names = request_.outputs;
    std::vector<Value*> buffers;
    for (const Value* p : trainable_) {
      buffers.push_back(graph_.add_value(p->name + std::string(kBufferSuffix), p->type));
      graph_.inputs.push_back(buffers.back());
    }
    Value* reset = graph_.add_value(kResetFlag, Type::tensor(DType::boolean, Shape{1}));
    graph_.inputs.push_back(reset);
    for (std::size_t i = 0; i < trainable_.size(); ++i) {
      accumulate(buffers[i], gradients[i], reset, trainable_[i]->name, names);
    }
    update_statistics(names);
    graph_.remove_dead_nodes();
    remove_function_gradients(graph_);
    return names;
  }

 private:
  void accumulate(Value* sum, Value* value, Value* overwrite, const std::string& name, Names& names) {
    names.push_back(add_accumulator(graph_, sum, value, overwrite, name)->name);
  }

  /// Batch normalisations in training mode whose statistics are parameters write them back.
  void update_statistics(Names& names) {
    std::set<const Value*> written;
    Builder b(graph_, nullptr, "running_statistics");
    const std::vector<Node*> nodes = graph_.nodes();
    for (Node* node : nodes) {
      const bool updates = (node->op == "BatchNormalization" && node->attr_int("training_mode", 0) != 0) ||
                           node->op == "BatchNormInternal";
      if (!updates) continue;
      for (std::size_t k = 1; k <= 2; ++k) {
        Value* statistic = node->input(k + 2);
        if (statistic == nullptr || !contains(request_.frozen, statistic->name)) continue;
        if (!written.insert(statistic).second) continue;
        if (node->outputs.size() <= k) node->outputs.resize(k + 1, nullptr);
        if (node->outputs[k] == nullptr) {
          node->outputs[k] = graph_.add_value(statistic->name + "_updated", statistic->type);
          node->outputs[k]->producer = node;
        }
        Tensor yes(DType::boolean, {1});
        *yes.as<bool>() = true;
        accumulate(statistic, node->outputs[k], b.constant(yes), statistic->name, names);
      }
    }
  }

  Graph& graph_;
  const TrainingRequest& request_;
  std::vector<Value*> trainable_;
};

onnx_io::ModelProto training_model(const onnx_io::ModelProto& moved, const TrainingRequest& request) {
  std::unique_ptr<Graph> graph = import_or_throw(moved);
  ExportOptions options;
  options.opset = std::max<std::int64_t>(options.opset, opset_of(moved));
  options.output_names = Assembly(*graph, request).run();
  onnx_io::ModelProto model = export_graph(*graph, options);
  model.domain = moved.domain;
  model.graph.name = moved.graph.name;
  return model;
}

/// Written as it was read, so types of outputs that the file left out are filled in.
onnx_io::ModelProto eval_model(onnx_io::ModelProto model) {
  make_inference_form(model);
  std::unique_ptr<Graph> graph = import_or_throw(model);
  for (std::size_t i = 0; i < model.graph.output.size(); ++i) {
    model.graph.output[i].type = to_proto(graph->outputs[i]->type);
  }
  return model;
}

onnx_io::ModelProto with_parameters_as_inputs(const onnx_io::ModelProto& model, const TrainingRequest& request) {
  check_names(model.graph, request);
  onnx_io::ModelProto moved = model;
  set_outputs(moved.graph, request.outputs);
  Names parameters = request.requires_grad;
  parameters.insert(parameters.end(), request.frozen.begin(), request.frozen.end());
  move_to_inputs(moved.graph, parameters);
  return moved;
}

void collect_statistics(const std::vector<onnx_io::NodeProto>& nodes, Names& names) {
  for (const onnx_io::NodeProto& node : nodes) {
    if (node.op_type != "BatchNormalization" || !node.domain.empty() || node.input.size() < 5) continue;
    const bool trains = std::any_of(node.attribute.begin(), node.attribute.end(), [](const onnx_io::AttributeProto& a) {
      return a.name == "training_mode" && a.i != 0;
    });
    if (trains) names.insert(names.end(), {node.input[3], node.input[4]});
  }
}

}  // namespace

Value* add_accumulator(Graph& graph, Value* sum, Value* value, Value* overwrite, const std::string& name) {
  Value* done = graph.add_value(name + std::string(kAccumulatedSuffix), Type::tensor(DType::boolean, Shape{1}));
  graph.add_node("InPlaceAccumulatorV2", {sum, value, overwrite}, {done},
                 concat("GradientAccumulator", graph.outputs.size()), "com.microsoft");
  graph.outputs.push_back(done);
  return done;
}

TrainingModels build_training_models(const onnx_io::ModelProto& model, const TrainingRequest& request) {
  const onnx_io::ModelProto moved = with_parameters_as_inputs(model, request);
  return {training_model(moved, request), eval_model(moved)};
}

onnx_io::ModelProto build_training_model(const onnx_io::ModelProto& model, const TrainingRequest& request) {
  return training_model(with_parameters_as_inputs(model, request), request);
}

std::vector<std::string> running_statistics(const onnx_io::ModelProto& model) {
  Names used;
  collect_statistics(model.graph.node, used);
  Names found;
  for (const onnx_io::TensorProto& t : model.graph.initializer) {
    if (contains(used, t.name)) found.push_back(t.name);
  }
  return found;
}

}  // namespace backpass
