#include "graph/graph.hpp"
#include "support/printable.hpp"

namespace backpass {
namespace {

template <class T>
constexpr std::string_view kind_name() {
  if constexpr (std::is_same_v<T, std::int64_t>) return "an int";
  if constexpr (std::is_same_v<T, float>) return "a float";
  if constexpr (std::is_same_v<T, std::string>) return "a string";
  if constexpr (std::is_same_v<T, Tensor>) return "a tensor";
  if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) return "ints";
  if constexpr (std::is_same_v<T, std::vector<float>>) return "floats";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "strings";
  if constexpr (std::is_same_v<T, std::vector<Tensor>>) return "tensors";
  if constexpr (std::is_same_v<T, Type>) return "a type";
  return "another kind";
}

std::string_view kind_of(const Attribute& attribute) {
  return std::visit([]<class T>(const T&) { return kind_name<T>(); }, attribute);
}

template <class T>
const T* get(const Node& node, std::string_view key) {
  auto it = node.attributes.find(key);
  if (it == node.attributes.end()) return nullptr;
  const T* value = std::get_if<T>(&it->second);
  if (value == nullptr) {
    fail(node.label(), " attribute '", key, "': got ", kind_of(it->second), ", expected ", kind_name<T>());
  }
  return value;
}

template <class T>
T get_or(const Node& node, std::string_view key, T otherwise) {
  const T* value = get<T>(node, key);
  return value == nullptr ? std::move(otherwise) : *value;
}

template <class T>
T get_required(const Node& node, std::string_view key) {
  const T* value = get<T>(node, key);
  if (value == nullptr) fail(node.label(), " attribute '", key, "': got none, expected ", kind_name<T>());
  return *value;
}

}  // namespace

std::int64_t Node::attr_int(std::string_view key, std::int64_t otherwise) const {
  return get_or(*this, key, otherwise);
}

float Node::attr_float(std::string_view key, float otherwise) const { return get_or(*this, key, otherwise); }

std::string Node::attr_string(std::string_view key, std::string_view otherwise) const {
  return get_or(*this, key, std::string(otherwise));
}

std::vector<std::int64_t> Node::attr_ints(std::string_view key, std::vector<std::int64_t> otherwise) const {
  return get_or(*this, key, std::move(otherwise));
}

std::vector<float> Node::attr_floats(std::string_view key, std::vector<float> otherwise) const {
  return get_or(*this, key, std::move(otherwise));
}

std::vector<std::string> Node::attr_strings(std::string_view key, std::vector<std::string> otherwise) const {
  return get_or(*this, key, std::move(otherwise));
}

const Tensor* Node::attr_tensor(std::string_view key) const { return get<Tensor>(*this, key); }

std::int64_t Node::attr_int(std::string_view key) const { return get_required<std::int64_t>(*this, key); }

std::string Node::attr_string(std::string_view key) const { return get_required<std::string>(*this, key); }

const Graph* Node::subgraph(std::string_view key) const {
  for (const auto& [attribute, graph] : subgraphs) {
    if (attribute == key) return graph.get();
  }
  return nullptr;
}

std::string Node::label() const {
  const std::string type = domain.empty() ? op : domain + "." + op;
  return concat("[", readable(type, 200), " ", printable(name), "]");
}

Type Type::tensor(DType dtype, std::optional<Shape> shape) {
  Type t;
  t.kind = Kind::tensor;
  t.dtype = dtype;
  t.shape = std::move(shape);
  return t;
}

Type Type::sequence(Type element) {
  Type t;
  t.kind = Kind::sequence;
  t.element = std::make_shared<const Type>(std::move(element));
  return t;
}

Type Type::optional(Type element) {
  Type t;
  t.kind = Kind::optional;
  t.element = std::make_shared<const Type>(std::move(element));
  return t;
}

std::string Type::str() const {
  switch (kind) {
    case Kind::tensor:
      return std::string(name_of(dtype)) + (shape ? to_string(*shape) : "[...]");
    case Kind::sequence:
      return "seq(" + element->str() + ")";
    case Kind::optional:
      return "optional(" + element->str() + ")";
    case Kind::unknown:
      break;
  }
  return "?";
}

}  // namespace backpass
