#include <algorithm>

#include "graph/graph.hpp"

namespace backpass {
namespace {

std::string print_tensor(const Tensor& t) {
  std::string text = std::string(name_of(t.dtype())) + to_string(t.dims());
  bool printable = is_float(t.dtype()) || is_integer(t.dtype()) || t.dtype() == DType::boolean;
  if (!printable || t.size() > 8) return text;
  text += "{";
  const char* separator = "";
  for (double v : t.to_doubles()) {
    text += separator + concat(v);
    separator = ",";
  }
  return text + "}";
}

template <class T>
std::string print_list(const std::vector<T>& items) {
  std::string text = "[";
  for (std::size_t i = 0; i < items.size(); ++i) text += (i ? "," : "") + concat(items[i]);
  return text + "]";
}

std::string print_attribute(const Attribute& attribute) {
  struct Visitor {
    std::string operator()(std::int64_t v) const { return std::to_string(v); }
    std::string operator()(float v) const { return concat(v); }
    std::string operator()(const std::string& v) const { return "\"" + v + "\""; }
    std::string operator()(const Tensor& v) const { return print_tensor(v); }
    std::string operator()(const std::vector<std::int64_t>& v) const { return print_list(v); }
    std::string operator()(const std::vector<float>& v) const { return print_list(v); }
    std::string operator()(const std::vector<std::string>& v) const { return print_list(v); }
    std::string operator()(const std::vector<Tensor>& v) const {
      std::string text = "[";
      for (const Tensor& t : v) text.append(text.size() > 1 ? "," : "").append(print_tensor(t));
      return text + "]";
    }
    std::string operator()(const Type& v) const { return v.str(); }
  };
  return std::visit(Visitor{}, attribute);
}

std::string typed(const Value* v) { return v == nullptr ? "_" : "%" + v->name + ": " + v->type.str(); }

void print_graph(const Graph& graph, const std::string& indent, std::string& text) {
  text += indent + "graph '" + graph.name + "' (";
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) text += (i ? ", " : "") + typed(graph.inputs[i]);
  text += ")";
  for (const Capture& c : graph.captures) text += " captures %" + c.inner->name;
  text += "\n";
  for (const auto& v : graph.values()) {
    if (v->constant) text += indent + "  %" + v->name + " = " + print_tensor(*v->constant) + "\n";
  }
  for (const Node* node : graph.nodes()) {
    text += indent + "  ";
    for (std::size_t i = 0; i < node->outputs.size(); ++i) text += (i ? ", " : "") + typed(node->outputs[i]);
    text.append(" = ").append(node->domain.empty() ? "" : node->domain + ".").append(node->op).append("(");
    for (std::size_t i = 0; i < node->inputs.size(); ++i) {
      text += (i ? ", " : "") + (node->inputs[i] == nullptr ? "_" : "%" + node->inputs[i]->name);
    }
    text += ")";
    if (!node->attributes.empty()) {
      text += " {";
      const char* separator = "";
      for (const auto& [key, attribute] : node->attributes) {
        text.append(separator).append(key).append("=").append(print_attribute(attribute));
        separator = ", ";
      }
      text += "}";
    }
    if (!node->name.empty()) text += " '" + node->name + "'";
    text += "\n";
    for (const auto& [key, sub] : node->subgraphs) {
      text.append(indent).append("    ").append(key).append(":\n");
      print_graph(*sub, indent + "      ", text);
    }
  }
  text += indent + "  return ";
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    const bool is_gradient = i >= graph.first_gradient && i - graph.first_gradient < graph.gradient_count;
    text.append(i ? ", " : "").append(is_gradient ? "gradient %" : "%").append(graph.outputs[i]->name);
  }
  text += "\n";
}

}  // namespace

std::string print(const Graph& graph) {
  std::string text;
  print_graph(graph, "", text);
  return text;
}

}  // namespace backpass
