#include <cstring>
#include <map>
#include <optional>

#include "graph/op.hpp"
#include "passes/list.hpp"

namespace backpass {
namespace {

std::string bytes_of(const Tensor& t) {
  std::string text = std::string(name_of(t.dtype())) + to_string(t.dims());
  if (t.dtype() == DType::string) {
    for (const std::string& s : t.values<std::string>()) text += std::to_string(s.size()) + ":" + s;
    return text;
  }
  return text.append(t.as<char>(), t.bytes());
}

/// Names shared by equal values: constants by contents, everything else by identity. Of large ones, only those that are
/// never trained (masks, positions): parameters that begin alike need not stay so.
class Identities {
 public:
  std::string of(const Value* v) {
    if (v == nullptr) return "_";
    if (!v->constant || v->constant->dtype() == DType::string) return name_of(v);
    if (v->constant->bytes() <= kSmall) return "c" + bytes_of(*v->constant);
    return is_float(v->constant->dtype()) ? name_of(v) : name_of(first_like(v));
  }

 private:
  static constexpr std::size_t kSmall = 64;

  static std::string name_of(const Value* v) { return concat("v", static_cast<const void*>(v)); }

  const Value* first_like(const Value* v) {
    const Tensor& t = *v->constant;
    std::string start = std::string(backpass::name_of(t.dtype())) + to_string(t.dims());
    std::vector<const Value*>& alike = constants_[start.append(t.as<char>(), kSmall)];
    for (const Value* other : alike) {
      if (other == v || std::memcmp(other->constant->data(), t.data(), t.bytes()) == 0) return other;
    }
    alike.push_back(v);
    return v;
  }

  std::map<std::string, std::vector<const Value*>> constants_;  // by type and their first bytes
};

std::optional<std::string> text_of(const Attribute& attribute) {
  struct Visitor {
    std::optional<std::string> operator()(std::int64_t v) const { return std::to_string(v); }
    std::optional<std::string> operator()(float v) const { return std::string(reinterpret_cast<const char*>(&v), 4); }
    std::optional<std::string> operator()(const std::string& v) const { return v; }
    std::optional<std::string> operator()(const Tensor& v) const { return bytes_of(v); }
    std::optional<std::string> operator()(const std::vector<std::int64_t>& v) const { return to_string(v); }
    std::optional<std::string> operator()(const std::vector<float>& v) const {
      return std::string(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(float));
    }
    std::optional<std::string> operator()(const std::vector<std::string>&) const { return std::nullopt; }
    std::optional<std::string> operator()(const std::vector<Tensor>&) const { return std::nullopt; }
    std::optional<std::string> operator()(const Type&) const { return std::nullopt; }
  };
  return std::visit(Visitor{}, attribute);
}

std::optional<std::string> key_of(const Node& node, Identities& identities) {
  if (node.def == nullptr || node.def->is_random || !node.subgraphs.empty()) return std::nullopt;
  std::string key = concat(node.domain, ".", node.op, "@", node.opset, "/", node.outputs.size());
  for (const Value* v : node.outputs) key += v == nullptr ? "-" : "+";
  for (const Value* v : node.inputs) key += "|" + identities.of(v);
  for (const auto& [name, attribute] : node.attributes) {
    std::optional<std::string> text = text_of(attribute);
    if (!text) return std::nullopt;
    key += "#" + name + "=" + *text;
  }
  return key;
}

}  // namespace

void merge_duplicates(Graph& graph, Reports& reports) {
  std::map<std::string, Node*> seen;
  Identities identities;
  bool removed = false;
  for (Node* node : graph.nodes()) {
    std::optional<std::string> key = key_of(*node, identities);
    if (!key) continue;
    auto [it, added] = seen.emplace(*key, node);
    if (added) continue;
    bool gives_output = false;
    for (const Value* v : node->outputs) gives_output = gives_output || (v != nullptr && graph.is_output(v));
    if (gives_output) continue;
    for (std::size_t k = 0; k < node->outputs.size(); ++k) {
      if (node->outputs[k] != nullptr) graph.replace_uses(node->outputs[k], it->second->outputs[k]);
    }
    reports.push_back({.node = node->label(),
                       .what = "merged " + node->label() + " with " + it->second->label(),
                       .why = "both compute the same from the same",
                       .operations_saved = operations_of(*node),
                       .bytes_saved = node->def->is_view ? "0" : bytes_of(node->outputs)});
    removed = true;
  }
  if (removed) graph.remove_dead_nodes();
}

}  // namespace backpass
