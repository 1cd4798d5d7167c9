#include "graph/same_values.hpp"

#include "graph/exact_text.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

constexpr std::size_t kMaxComparedConstant = 1 << 20;  // bytes; larger ones are the same where they share their data

std::string text_of(const Tensor& constant) {
  if (constant.dtype() == DType::string || constant.bytes() <= kMaxComparedConstant) return exact_text(constant);
  return concat(name_of(constant.dtype()), to_string(constant.dims()), "@", constant.data());
}

/// How many there are but for those left out at the end.
std::size_t count_of(const std::vector<Value*>& values) {
  std::size_t count = values.size();
  while (count > 0 && values[count - 1] == nullptr) --count;
  return count;
}

bool is_copy(const Node& node) { return node.op == "Identity" && node.domain.empty(); }

}  // namespace

void SameValues::add(const Graph& graph) {
  for (const Value* v : graph.inputs) known_[v] = number_for("input " + v->name);
  add_nodes(graph);
}

void SameValues::add_nodes(const Graph& graph) {
  for (const Node* node : graph.nodes()) add_node(*node);
}

void SameValues::add_node(const Node& node) {
  if (is_copy(node)) {
    known_[node.output(0)] = number_of(node.input(0));
    return;
  }
  std::string text = concat(node.domain, ".", node.op, "@", node.opset, "/", count_of(node.outputs));
  if (node.def == nullptr || node.def->is_random) text += "'" + node.name + "'";
  for (std::size_t i = 0; i < count_of(node.inputs); ++i) {
    text += node.inputs[i] == nullptr ? "|" : concat("|", number_of(node.inputs[i]));
  }
  for (const auto& [name, attribute] : node.attributes) {
    const std::string value = exact_text(attribute);
    text += concat("#", name, "=", value.size(), ":") + value;
  }
  for (const auto& [key, body] : node.subgraphs) text += "#" + key + "=" + text_of(*body);
  for (std::size_t k = 0; k < node.outputs.size(); ++k) {
    if (node.outputs[k] != nullptr) known_[node.outputs[k]] = number_for(concat(k, " of ") + text);
  }
}

/// A body is what it gives for its arguments and what it captures.
std::string SameValues::text_of(const Graph& body) {
  ++depth_;
  std::string text = concat("{", body.inputs.size());
  for (std::size_t k = 0; k < body.inputs.size(); ++k) {
    known_[body.inputs[k]] = number_for(concat("argument ", k, " at ", depth_));
  }
  for (const Capture& c : body.captures) known_[c.inner] = number_of(c.outer);
  add_nodes(body);
  for (const Value* v : body.outputs) text += concat("|", number_of(v));
  --depth_;
  return text + "}";
}

int SameValues::number_of(const Value* v) {
  const auto found = known_.find(v);
  if (found != known_.end()) return found->second;
  ensure(v->constant.has_value(), "value '", v->name, "' that no graph computes");
  return known_[v] = number_for("constant " + backpass::text_of(*v->constant));
}

int SameValues::number_for(const std::string& text) {
  return numbers_.try_emplace(text, static_cast<int>(numbers_.size())).first->second;
}

}  // namespace backpass
