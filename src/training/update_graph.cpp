#include "training/update_graph.hpp"

#include <algorithm>

#include "graph/clone.hpp"
#include "graph/overwriting.hpp"

namespace backpass {
namespace {

class Updating {
 public:
  Updating(const Graph& graph, std::span<const std::string> names, const UpdateRule& rule)
      : copy_(clone(graph).graph), graph_(*copy_), rule_(rule) {
    const auto first = graph_.outputs.begin() + static_cast<std::ptrdiff_t>(graph_.first_gradient);
    gradients_.assign(first, first + static_cast<std::ptrdiff_t>(graph_.gradient_count));
    for (const std::string& name : names) parameters_.push_back(input_named(name));
  }

  UpdateGraph run() {
    std::string obstacle = find_obstacle();
    if (!obstacle.empty()) return {nullptr, std::move(obstacle)};
    Value* rate = add_input("learning_rate", Type::tensor(DType::float64, Shape{1}));
    Value* step = add_input("step", Type::tensor(DType::int64, Shape{1}));
    const std::size_t count = parameters_.size();
    std::vector<Value*> states;
    for (const std::string& name : rule_.states) {
      for (const Value* w : parameters_) states.push_back(add_input(w->name + "." + name, w->type));
    }
    std::vector<Value*> updated(count * (1 + rule_.states.size()));
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<Value*> reads{rate, step, parameters_[i], gradients_[i]};
      for (std::size_t s = 0; s < rule_.states.size(); ++s) reads.push_back(states[s * count + i]);
      const std::vector<Value*> written = add_update(reads, rule_.of(i));
      for (std::size_t s = 0; s < written.size(); ++s) updated[s * count + i] = written[s];
    }
    replace_gradients(updated);
    return {std::move(copy_), ""};
  }

 private:
  Value* input_named(const std::string& name) const {
    const auto found =
        std::find_if(graph_.inputs.begin(), graph_.inputs.end(), [&](const Value* v) { return v->name == name; });
    return found == graph_.inputs.end() ? nullptr : *found;
  }

  Value* add_input(std::string_view name, Type type) {
    graph_.inputs.push_back(graph_.add_value(name, std::move(type)));
    return graph_.inputs.back();
  }

  std::string find_obstacle() const {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const Value* w = parameters_[i];
      if (w == nullptr) return concat("gradient '", gradients_[i]->name, "' belongs to no input");
      if (gradients_[i]->type.dtype != w->type.dtype) {
        return concat("the gradient of '", w->name, "' is ", gradients_[i]->type.str(), ", not ", w->type.str());
      }
      const ValueSet same = values_in_memory_of(w);
      for (std::size_t k = 0; k < graph_.outputs.size(); ++k) {  // read when all updates are done, or by another one
        if (graph_.outputs[k] != gradients_[i] && same.contains(graph_.outputs[k])) {
          return concat("'", graph_.outputs[k]->name, "' is parameter '", w->name, "' itself, before its update");
        }
      }
    }
    return "";
  }

  std::vector<Value*> add_update(const std::vector<Value*>& reads, const UpdateRule::Attributes& attributes) {
    constexpr std::size_t kWeight = 2, kFirstState = 4;
    std::vector<std::int64_t> sources{kWeight};
    for (std::size_t i = kFirstState; i < reads.size(); ++i) sources.push_back(static_cast<std::int64_t>(i));
    std::vector<Value*> writes;
    for (const std::int64_t i : sources) {
      const Value* old = reads[static_cast<std::size_t>(i)];
      writes.push_back(graph_.add_value(old->name + "_updated", old->type));
    }
    Node* node = graph_.add_node(rule_.op, reads, writes, reads[kWeight]->name, "backpass");
    node->attributes = attributes;
    set_overwritten(*node, std::move(sources));
    return writes;
  }

  void replace_gradients(const std::vector<Value*>& updated) {
    const auto first = graph_.outputs.begin() + static_cast<std::ptrdiff_t>(graph_.first_gradient);
    const auto behind = graph_.outputs.erase(first, first + static_cast<std::ptrdiff_t>(graph_.gradient_count));
    graph_.outputs.insert(behind, updated.begin(), updated.end());
    graph_.gradient_count = updated.size();
  }

  std::unique_ptr<Graph> copy_;
  Graph& graph_;
  const UpdateRule& rule_;
  std::vector<Value*> gradients_;
  std::vector<Value*> parameters_;
};

}  // namespace

const UpdateRule::Attributes& UpdateRule::of(std::size_t parameter) const {
  static const Attributes none;
  if (attributes.empty()) return none;
  ensure(attributes.size() == 1 || parameter < attributes.size(), "update rule: attributes of every parameter");
  return attributes.size() == 1 ? attributes.front() : attributes[parameter];
}

UpdateGraph with_updates(const Graph& graph, std::span<const std::string> parameters, const UpdateRule& rule) {
  return Updating(graph, parameters, rule).run();
}

}  // namespace backpass
