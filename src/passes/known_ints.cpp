#include <unordered_map>

#include "passes/list.hpp"

namespace backpass {
namespace {

bool has_known_extents(const Value& v) {
  bool integers = v.type.dtype == DType::int64 || v.type.dtype == DType::int32;
  return integers && v.type.is_tensor() && v.type.shape && is_known(*v.type.shape) && v.ints &&
         element_count(to_dims(*v.type.shape)) == static_cast<std::int64_t>(v.ints->size());
}

Tensor as_tensor(const Value& v) {
  Tensor t(v.type.dtype, to_dims(*v.type.shape));
  for (std::size_t i = 0; i < v.ints->size(); ++i) {
    if (v.type.dtype == DType::int64) {
      t.as<std::int64_t>()[i] = (*v.ints)[i].value();
    } else {
      t.as<std::int32_t>()[i] = static_cast<std::int32_t>((*v.ints)[i].value());
    }
  }
  return t;
}

class Redirection {
 public:
  Redirection(Graph& graph, Reports& reports) : graph_(graph), reports_(reports) {}

  void run() {
    for (Node* node : graph_.nodes()) {
      for (std::size_t i = 0; i < node->inputs.size(); ++i) {
        auto it = instead_.find(node->inputs[i]);
        if (it == instead_.end()) continue;
        graph_.set_input(*node, i, it->second);
        redirected_ = true;
      }
      for (Value* v : node->outputs) {
        if (v != nullptr && has_known_extents(*v)) find_other(node, v);
      }
    }
    if (redirected_) graph_.remove_dead_nodes();
  }

 private:
  void find_other(const Node* node, Value* v) {
    std::string key = std::string(name_of(v->type.dtype)) + to_string(*v->type.shape) + to_string(*v->ints);
    auto [it, is_new] = seen_.emplace(std::move(key), Known{*v->ints, v});
    if (is_new) {
      if (!is_known(*v->ints)) return;
      it->second.value = graph_.add_constant(v->name + "/constant", as_tensor(*v));
    }
    if (it->second.contents != *v->ints) return;  // a symbol may have been given the name of an expression
    const Value* other = it->second.value;
    instead_.emplace(v, it->second.value);
    std::string what = other->constant ? "a constant" : concat("'", other->name, "'");
    reports_.push_back({.node = node->label(),
                        .what = concat("replaced ", node->label(), " by ", what, ": both are ", to_string(*v->ints)),
                        .why = "the extents tell it",
                        .bytes_saved = bytes_of(v)});
  }

  Graph& graph_;
  Reports& reports_;
  struct Known {
    std::vector<Dim> contents;
    Value* value;
  };
  std::unordered_map<std::string, Known> seen_;  // by the text of type and contents
  std::unordered_map<const Value*, Value*> instead_;
  bool redirected_ = false;
};

}  // namespace

void known_ints(Graph& graph, Reports& reports) { Redirection(graph, reports).run(); }

}  // namespace backpass
