#include "passes/labels.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include "graph/op.hpp"
#include "passes/pattern.hpp"
#include "support/visit.hpp"

namespace backpass {
namespace {

using pattern::is_op;

bool adds_or_drops_axes(const Node* node) {
  return is_op(node, "Unsqueeze") || is_op(node, "Squeeze") || is_op(node, "Identity");
}

std::optional<std::size_t> rank_of(const Value* v) {
  if (!v->type.is_tensor() || !v->type.shape) return std::nullopt;
  return v->type.shape->size();
}

/// The integer that a value is compared with, and the value.
std::optional<Labels> compared(const Node& equal) {
  for (std::size_t i = 0; i < 2; ++i) {
    const std::optional<double> number = known_number(equal.input(1 - i));
    Value* v = equal.input(i);
    if (number && v != nullptr && types::indices.has(v->type.dtype))
      return Labels{v, static_cast<std::int64_t>(*number)};
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> known_number(const Value* v) {
  if (v == nullptr) return std::nullopt;
  if (is_op(v->producer, "Div")) {
    const auto a = known_number(v->producer->input(0));
    const auto b = known_number(v->producer->input(1));
    return a && b && is_float(v->type.dtype) ? std::optional<double>(*a / *b) : std::nullopt;
  }
  if (is_op(v->producer, "Cast")) return known_number(v->producer->input(0));
  if (!v->constant || v->constant->size() != 1 || !types::numbers.has(v->constant->dtype())) return std::nullopt;
  return v->constant->to_doubles().front();
}

bool Labels::are(const Value* v) const {
  while (v != nullptr && v != value) {
    const Node* node = v->producer;
    const bool widens = is_op(node, "Cast") && types::indices.has(v->type.dtype);
    v = widens || adds_or_drops_axes(node) ? node->input(0) : nullptr;
  }
  return v != nullptr;
}

std::optional<bool> Labels::at_ignored(const Value* condition) const {
  const Node* node = condition == nullptr ? nullptr : condition->producer;
  if (node == nullptr) return std::nullopt;
  if (adds_or_drops_axes(node)) return at_ignored(node->input(0));
  if (is_op(node, "Not")) {
    const auto inner = at_ignored(node->input(0));
    return inner ? std::optional<bool>(!*inner) : std::nullopt;
  }
  if (is_op(node, "Equal")) {
    const auto found = compared(*node);
    const bool fits = found && are(found->value);
    return fits ? std::optional<bool>(found->ignore_index == ignore_index) : std::nullopt;
  }
  const bool is_and = is_op(node, "And");
  if (!is_and && !is_op(node, "Or")) return std::nullopt;
  for (const Value* v : node->inputs) {
    if (at_ignored(v) == !is_and) return !is_and;
  }
  return std::nullopt;
}

bool Labels::decide(const Value* v) const {
  if (v == nullptr) return false;
  if (v == value) return true;
  const Node* node = v->producer;
  if (node == nullptr || node->def == nullptr || !rank_of(v)) return false;
  if (adds_or_drops_axes(node)) return decide(node->input(0));
  if (is_op(node, "Gather")) {
    const Value* table = node->input(0);
    return node->attr_int("axis", 0) == 0 && rank_of(table) == 1 && !decide(table) && decide(node->input(1));
  }
  if (node->def->tile == nullptr) return false;
  bool any = false;
  for (const Value* operand : node->inputs) {
    if (operand == nullptr || known_number(operand)) continue;
    if (rank_of(operand) != rank_of(v) || !decide(operand)) return false;
    any = true;
  }
  return any;
}

bool Labels::silence(const Value* v) const {
  const Node* node = v == nullptr ? nullptr : v->producer;
  if (!is_op(node, "Where") || !decide(v)) return false;
  const auto ignored = at_ignored(node->input(0));
  return ignored && known_number(node->input(*ignored ? 1 : 2)) == 0;
}

std::optional<Labels> labels_in(const Value* condition) {
  const Node* node = condition == nullptr ? nullptr : condition->producer;
  if (is_op(node, "Equal")) return compared(*node);
  const bool looks_inside = adds_or_drops_axes(node) || is_op(node, "Not") || is_op(node, "And") || is_op(node, "Or");
  if (!looks_inside) return std::nullopt;
  for (const Value* v : node->inputs) {
    if (auto found = labels_in(v)) return found;
  }
  return std::nullopt;
}

std::string why_not_fed(const Graph& graph, const Value* labels) {
  std::vector<const Value*> open{labels};
  std::set<const Value*> seen;
  while (!open.empty()) {
    const Value* v = open.back();
    open.pop_back();
    if (!seen.insert(v).second || v->constant) continue;
    const Node* node = v->producer;
    if (node == nullptr) {
      const bool is_input = std::find(graph.inputs.begin(), graph.inputs.end(), v) != graph.inputs.end();
      if (!is_input) return "the labels depend on '" + v->name + "', which is no input";
      continue;
    }
    if (is_op(node, "Shape") || is_op(node, "Size")) continue;
    const bool is_whole = types::integers.has(v->type.dtype) || v->type.dtype == DType::boolean;
    if (!is_whole || node->def == nullptr || node->def->is_random || node->subgraphs.size() != 0) {
      return "the labels depend on what " + node->label() + " computes";
    }
    for (const Value* read : node->inputs) {
      if (read != nullptr) open.push_back(read);
    }
  }
  return "";
}

}  // namespace backpass
