#include "training/unwrap.hpp"

#include <algorithm>

#include "model/training_graph.hpp"

namespace backpass {
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

class Unwrapping {
 public:
  explicit Unwrapping(Graph& graph) : graph_(graph) {}

  Unwrapped run(const std::set<std::string>& parameters) {
    std::vector<Value*> user;
    std::vector<Value*> gradients;
    std::vector<Value*> updates;
    for (Value* v : graph_.outputs) {
      if (!is_accumulator(v)) {
        user.push_back(v);
        continue;
      }
      const Node& node = *v->producer;
      const Value* target = node.inputs.at(0);
      if (ends_with(target->name, kBufferSuffix)) {
        names_.trainable.push_back(target->name.substr(0, target->name.size() - kBufferSuffix.size()));
        gradients.push_back(node.inputs.at(1));
      } else if (parameters.count(target->name) != 0 && is_true(node.input(2))) {
        names_.updated.push_back(target->name);
        updates.push_back(node.inputs.at(1));
      } else {
        fail<Unsupported>(node.label(), " accumulates into '", target->name,
                          "': expected a gradient buffer or a parameter that is overwritten");
      }
    }
    take_statistics(parameters, updates);
    graph_.outputs = std::move(user);
    graph_.outputs.insert(graph_.outputs.end(), gradients.begin(), gradients.end());
    graph_.outputs.insert(graph_.outputs.end(), updates.begin(), updates.end());
    own_outputs(graph_);
    graph_.remove_dead_nodes();
    drop_buffers();
    return std::move(names_);
  }

 private:
  /// In ONNX Runtime's training models BatchNormInternal writes over the statistics it reads; nothing in the graph says
  /// so.
  void take_statistics(const std::set<std::string>& parameters, std::vector<Value*>& updates) {
    const std::vector<Node*> nodes = graph_.nodes();
    for (Node* node : nodes) {
      if (node->op != "BatchNormInternal" || node->domain != "com.microsoft") continue;
      for (std::size_t k = 1; k <= 2; ++k) {
        const Value* statistic = node->inputs.at(k + 2);
        if (statistic == nullptr || parameters.count(statistic->name) == 0) continue;
        if (std::find(names_.updated.begin(), names_.updated.end(), statistic->name) != names_.updated.end()) continue;
        if (node->outputs.size() <= k) node->outputs.resize(k + 1, nullptr);
        if (node->outputs[k] == nullptr) {
          node->outputs[k] = graph_.add_value(statistic->name + "_updated", statistic->type);
          node->outputs[k]->producer = node;
        }
        names_.updated.push_back(statistic->name);
        updates.push_back(node->outputs[k]);
      }
    }
  }

  void drop_buffers() {
    std::erase_if(graph_.inputs,
                  [&](const Value* v) { return ends_with(v->name, kBufferSuffix) || v->name == kResetFlag; });
  }

  Graph& graph_;
  Unwrapped names_;
};

}  // namespace

std::vector<std::string> wrap_accumulators(Graph& graph, const Unwrapped& names) {
  auto input = [&](const std::string& name) {
    return *std::find_if(graph.inputs.begin(), graph.inputs.end(), [&](const Value* v) { return v->name == name; });
  };
  const std::vector<Value*> outputs = graph.outputs;
  graph.outputs.resize(graph.first_gradient);
  std::vector<Value*> buffers;
  for (const std::string& name : names.trainable) {
    buffers.push_back(graph.add_value(name + std::string(kBufferSuffix), input(name)->type));
  }
  graph.inputs.insert(graph.inputs.end(), buffers.begin(), buffers.end());
  graph.inputs.push_back(graph.add_value(kResetFlag, Type::tensor(DType::boolean, Shape{1})));
  Value* reset = graph.inputs.back();
  std::vector<std::string> flags;
  auto next = outputs.begin() + static_cast<std::ptrdiff_t>(graph.first_gradient);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    flags.push_back(add_accumulator(graph, buffers[i], *next++, reset, names.trainable[i])->name);
  }
  if (!names.updated.empty()) {
    Tensor yes(DType::boolean, {1});
    *yes.as<bool>() = true;
    Value* always = graph.add_constant("overwrites", yes);
    for (const std::string& name : names.updated) {
      flags.push_back(add_accumulator(graph, input(name), *next++, always, name)->name);
    }
  }
  graph.gradient_count = 0;
  graph.first_gradient = 0;
  return flags;
}

void own_outputs(Graph& graph) {
  std::set<const Value*> taken;
  for (Value*& v : graph.outputs) {
    if (v->producer == nullptr || !taken.insert(v).second) {
      Value* copy = graph.add_value(v->name + "_copy", v->type);
      graph.add_node("Identity", {v}, {copy}, v->name + "_copy");
      v = copy;
    }
  }
}

Unwrapped unwrap_accumulators(Graph& graph, const std::set<std::string>& parameters) {
  return Unwrapping(graph).run(parameters);
}

}  // namespace backpass
