#include "passes/known_ints.hpp"

#include <unordered_map>

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
  Redirection(Graph& graph, std::vector<std::string>& log) : graph_(graph), log_(log) {}

  int run() {
    for (Node* node : graph_.nodes()) {
      for (std::size_t i = 0; i < node->inputs.size(); ++i) {
        auto it = instead_.find(node->inputs[i]);
        if (it == instead_.end()) continue;
        graph_.set_input(*node, i, it->second);
        ++redirected_;
      }
      for (Value* v : node->outputs) {
        if (v != nullptr && has_known_extents(*v)) find_other(node, v);
      }
    }
    if (redirected_ > 0) graph_.remove_dead_nodes();
    return redirected_;
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
    log_.push_back(concat("replaced ", node->label(), " by ", what, ": both are ", to_string(*v->ints)));
  }

  Graph& graph_;
  std::vector<std::string>& log_;
  struct Known {
    std::vector<Dim> contents;
    Value* value;
  };
  std::unordered_map<std::string, Known> seen_;  // by the text of type and contents
  std::unordered_map<const Value*, Value*> instead_;
  int redirected_ = 0;
};

}  // namespace

int known_ints(Graph& graph, std::vector<std::string>& log) { return Redirection(graph, log).run(); }

}  // namespace backpass
