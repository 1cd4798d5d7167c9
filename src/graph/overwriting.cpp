#include "graph/overwriting.hpp"

#include <algorithm>

#include "graph/op.hpp"

namespace backpass {
namespace {

constexpr std::string_view kAttribute = "overwritten_inputs";

bool gives_out(const Graph& body, const Value* inner) {
  const ValueSet inside = values_in_memory_of(inner);
  return std::any_of(body.outputs.begin(), body.outputs.end(), [&](const Value* v) { return inside.contains(v); });
}

/// Whether a result of the node may be the value itself under another name.
bool hands_on(const Node& node, const Value* value) {
  const bool is_input = std::find(node.inputs.begin(), node.inputs.end(), value) != node.inputs.end();
  for (const auto& [key, body] : node.subgraphs) {
    for (const Capture& c : body->captures) {
      if (c.outer == value && gives_out(*body, c.inner)) return true;
    }
  }
  if (!is_input) return false;
  if (node.def == nullptr || node.def->compute != nullptr || !node.subgraphs.empty()) return true;
  return node.def->is_view && node.inputs.at(0) == value;
}

}  // namespace

void set_overwritten(Node& node, std::vector<std::int64_t> inputs) {
  node.attributes.insert_or_assign(std::string(kAttribute), std::move(inputs));
}

std::vector<const Value*> overwritten_by(const Node& node) {
  std::vector<const Value*> values;
  if (!node.has_attribute(kAttribute)) return values;
  for (const std::int64_t i : node.attr_ints(kAttribute)) {
    values.push_back(i < 0 ? nullptr : node.input(static_cast<std::size_t>(i)));
  }
  return values;
}

ValueSet values_in_memory_of(const Value* value) {
  ValueSet found{value};
  std::vector<const Value*> todo{value};
  while (!todo.empty()) {
    const Value* v = todo.back();
    todo.pop_back();
    for (const Node* reader : v->readers) {
      if (!hands_on(*reader, v)) continue;
      for (const Value* output : reader->outputs) {
        if (output != nullptr && found.insert(output).second) todo.push_back(output);
      }
    }
  }
  return found;
}

}  // namespace backpass
