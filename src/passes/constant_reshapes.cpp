#include <optional>

#include "passes/list.hpp"

namespace backpass {
namespace {

/// The target as numbers: 0 repeats the input's extent at that place, one -1 stands for the only extent left unknown.
std::optional<std::vector<std::int64_t>> constant_target(const Value& input, const std::vector<Dim>& target) {
  std::vector<std::int64_t> result;
  bool has_free = false;
  for (std::size_t i = 0; i < target.size(); ++i) {
    const Dim& d = target[i];
    bool repeats = input.type.shape && i < input.type.shape->size() && (*input.type.shape)[i] == d;
    if (d.is_known()) {
      if (d.is(0)) return std::nullopt;
      result.push_back(d.value());
    } else if (repeats) {
      result.push_back(0);
    } else {
      if (has_free) return std::nullopt;
      has_free = true;
      result.push_back(-1);
    }
  }
  return result;
}

/// With -1, an empty tensor would leave the free extent undetermined; the computed target determines it.
bool may_be_empty(const std::vector<std::int64_t>& target, const Value& input) {
  bool has_free = false;
  for (std::int64_t t : target) has_free = has_free || t == -1;
  if (!has_free) return false;
  for (std::size_t i = 0; i < target.size(); ++i) {
    if (target[i] == 0 && !(*input.type.shape)[i].is_known()) return true;
  }
  return false;
}

}  // namespace

void constant_reshapes(Graph& graph, Reports& reports) {
  bool changed = false;
  for (Node* node : graph.nodes()) {
    if (node->op != "Reshape" || !node->domain.empty() || node->attr_int("allowzero", 0) != 0) continue;
    Value* shape = node->input(1);
    if (node->input(0) == nullptr || shape == nullptr || shape->constant || !node->output(0)->type.shape) continue;
    auto target = constant_target(*node->input(0), *node->output(0)->type.shape);
    if (!target || may_be_empty(*target, *node->input(0))) continue;
    graph.set_input(*node, 1, graph.add_constant(shape->name + "/constant", Tensor::ints(*target)));
    reports.push_back({.node = node->label(),
                       .what = "made the target of " + node->label() + " constant: " + to_string(*target),
                       .why = "it follows from the extents of the input, so nothing has to compute it"});
    changed = true;
  }
  if (changed) graph.remove_dead_nodes();
}

}  // namespace backpass
