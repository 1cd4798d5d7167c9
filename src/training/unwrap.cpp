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
        user.push_back(own(v));
        continue;
      }
      const Node& node = *v->producer;
      const Value* target = node.inputs.at(0);
      if (ends_with(target->name, kBufferSuffix)) {
        names_.trainable.push_back(target->name.substr(0, target->name.size() - kBufferSuffix.size()));
        gradients.push_back(own(node.inputs.at(1)));
      } else if (parameters.count(target->name) != 0 && is_true(node.input(2))) {
        names_.updated.push_back(target->name);
        updates.push_back(own(node.inputs.at(1)));
      } else {
        fail<Unsupported>(node.label(), " accumulates into '", target->name,
                          "': expected a gradient buffer or a parameter that is overwritten");
      }
    }
    take_statistics(parameters, updates);
    graph_.outputs = std::move(user);
    graph_.outputs.insert(graph_.outputs.end(), gradients.begin(), gradients.end());
    graph_.outputs.insert(graph_.outputs.end(), updates.begin(), updates.end());
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
        updates.push_back(own(node->outputs[k]));
      }
    }
  }

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
  Unwrapped names_;
  std::set<const Value*> taken_;
};

}  // namespace

Unwrapped unwrap_accumulators(Graph& graph, const std::set<std::string>& parameters) {
  return Unwrapping(graph).run(parameters);
}

}  // namespace backpass
