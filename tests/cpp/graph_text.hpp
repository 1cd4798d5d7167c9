// A Graph from the text that print() makes of it, for tests of passes.
//
// Types of what nodes compute may be left out: they are inferred, as are the contents of small integer tensors.
// Constants without contents get some. A number without a dot is an integer. Bodies of control flow capture values
// under their own names.
#pragma once

#include <cctype>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/graph.hpp"
#include "graph/infer.hpp"

namespace backpass {

/// Reads a text from left to right.
class TextCursor {
 public:
  explicit TextCursor(std::string_view text) : rest_(text) {}

  bool at(std::string_view token) {
    skip_blanks();
    return rest_.starts_with(token);
  }
  bool take(std::string_view token) {
    if (!at(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  void expect(std::string_view token) {
    if (!take(token)) fail("graph text: got '", rest_.substr(0, 60), "', expected '", token, "'");
  }
  /// Up to one of these characters, which stays.
  std::string until(std::string_view ends) {
    skip_blanks();
    std::string word(rest_.substr(0, rest_.find_first_of(ends)));
    rest_.remove_prefix(word.size());
    while (!word.empty() && word.back() == ' ') word.pop_back();
    return word;
  }
  std::string quoted(char quote) {
    expect(std::string(1, quote));
    std::string text(rest_.substr(0, rest_.find(quote)));
    rest_.remove_prefix(text.size() + 1);
    return text;
  }

 private:
  void skip_blanks() {
    while (!rest_.empty() && std::isspace(static_cast<unsigned char>(rest_.front())) != 0) rest_.remove_prefix(1);
  }

  std::string_view rest_;
};

class GraphReader {
 public:
  explicit GraphReader(std::string_view text) : text_(text) {}

  void read(Graph& graph, const GraphReader* outer = nullptr) {
    text_.expect("graph");
    graph.name = text_.quoted('\'');
    text_.expect("(");
    while (!text_.take(")")) {
      graph.inputs.push_back(value(graph));
      text_.take(",");
    }
    while (text_.take("captures")) capture(graph, *outer);
    while (!text_.take("return")) line(graph);
    do {
      if (text_.take("gradient") && graph.gradient_count++ == 0) graph.first_gradient = graph.outputs.size();
      text_.expect("%");
      graph.outputs.push_back(named(text_.until(",%'= \n")));
    } while (text_.take(","));
  }

 private:
  Value* named(const std::string& name) const {
    auto it = names_.find(name);
    if (it == names_.end()) fail("graph text: %", name, " is read before it is defined");
    return it->second;
  }

  void capture(Graph& graph, const GraphReader& outer) {
    text_.expect("%");
    const std::string name = text_.until(" \n");
    Value* seen = outer.named(name);
    Value* inner = graph.add_value(name, seen->type);
    inner->constant = seen->constant;
    graph.add_capture(seen, inner);
    names_[name] = inner;
  }

  Value* value(Graph& graph) {
    text_.expect("%");
    const std::string name = text_.until(":,=)");
    Value* v = graph.add_value(name, text_.take(":") ? type() : Type());
    names_[name] = v;
    return v;
  }

  Type type() {
    if (text_.take("?")) return {};
    const DType dtype = parse_dtype(text_.until("["));
    if (text_.take("[...]")) return Type::tensor(dtype);
    text_.expect("[");
    Shape shape;
    while (!text_.take("]")) {
      const std::string extent = text_.until(",]");
      const bool number = extent.find_first_not_of("0123456789") == std::string::npos;
      shape.push_back(number ? Dim(std::stoll(extent)) : Dim::symbol(extent));
      text_.take(",");
    }
    return Type::tensor(dtype, std::move(shape));
  }

  static DType parse_dtype(const std::string& name) {
    for (DType d : {DType::float32, DType::float64, DType::float16, DType::bfloat16, DType::int64, DType::int32,
                    DType::boolean, DType::uint8, DType::int8}) {
      if (name_of(d) == name) return d;
    }
    fail("graph text: element type: got '", name, "'");
  }

  /// A constant or a node.
  void line(Graph& graph) {
    std::vector<Value*> outputs;
    do {
      outputs.push_back(text_.take("_") ? nullptr : value(graph));
    } while (text_.take(","));
    text_.expect("=");
    std::string op = text_.until("([");
    if (text_.at("[")) return make_constant(*outputs.at(0), parse_dtype(op));
    const std::size_t dot = op.rfind('.');
    const std::string domain = dot == std::string::npos ? "" : op.substr(0, dot);
    Node* node = graph.add_node(dot == std::string::npos ? op : op.substr(dot + 1), operands(), outputs, "", domain);
    if (node->def == nullptr) fail("graph text: there is no operator ", op);
    attributes(*node);
    if (text_.at("'")) node->name = text_.quoted('\'');
    while (!text_.at("%") && !text_.at("_") && !text_.at("return")) body(graph, *node);
    infer_node(graph, *node);
  }

  std::vector<Value*> operands() {
    std::vector<Value*> inputs;
    text_.expect("(");
    while (!text_.take(")")) {
      inputs.push_back(text_.take("_") ? nullptr : (text_.expect("%"), named(text_.until(",)"))));
      text_.take(",");
    }
    return inputs;
  }

  void body(Graph& graph, Node& node) {
    const std::string key = text_.until(":");
    text_.expect(":");
    auto sub = std::make_unique<Graph>();
    GraphReader inner(*this);
    inner.names_.clear();
    inner.read(*sub, this);
    text_ = inner.text_;
    graph.add_subgraph(node, key, std::move(sub));
  }

  void make_constant(Value& v, DType dtype) {
    text_.expect("[");
    Dims dims;
    while (!text_.take("]")) {
      dims.push_back(std::stoll(text_.until(",]")));
      text_.take(",");
    }
    Tensor t(dtype, dims);
    const bool given = text_.take("{");
    for (std::int64_t i = 0; i < t.size(); ++i) {
      set(t, i, given ? std::stod(text_.until(",}")) : static_cast<double>(i % 5 - 2) / 4);
      if (given) text_.take(",");
    }
    if (given) text_.expect("}");
    v.type = Type::tensor(dtype, to_shape(dims));
    v.constant = std::move(t);
  }

  static void set(Tensor& t, std::int64_t i, double x) {
    switch (t.dtype()) {
      case DType::float32:
        t.as<float>()[i] = static_cast<float>(x);
        return;
      case DType::float64:
        t.as<double>()[i] = x;
        return;
      case DType::int64:
        t.as<std::int64_t>()[i] = static_cast<std::int64_t>(x);
        return;
      case DType::boolean:
        t.as<bool>()[i] = x != 0;
        return;
      default:
        fail("graph text: contents of ", name_of(t.dtype()), " tensors are not read");
    }
  }

  void attributes(Node& node) {
    if (!text_.take("{")) return;
    while (!text_.take("}")) {
      const std::string key = text_.until("=");
      text_.expect("=");
      node.attributes[key] = attribute();
      text_.take(",");
    }
  }

  static bool is_float(const std::string& number) { return number.find_first_of(".e") != std::string::npos; }

  Attribute attribute() {
    if (text_.at("\"")) return text_.quoted('"');
    if (!text_.take("[")) {
      const std::string number = text_.until(",}");
      return is_float(number) ? Attribute(std::stof(number)) : Attribute(std::int64_t{std::stoll(number)});
    }
    std::vector<std::int64_t> ints;
    std::vector<float> floats;
    while (!text_.take("]")) {
      const std::string number = text_.until(",]");
      floats.push_back(std::stof(number));
      if (!is_float(number)) ints.push_back(std::stoll(number));
      text_.take(",");
    }
    return ints.size() == floats.size() ? Attribute(std::move(ints)) : Attribute(std::move(floats));
  }

  TextCursor text_;
  std::map<std::string, Value*> names_;
};

inline std::unique_ptr<Graph> parse_graph(std::string_view text) {
  auto graph = std::make_unique<Graph>();
  GraphReader(text).read(*graph);
  return graph;
}

}  // namespace backpass
