#include <cstring>
#include <map>
#include <optional>

#include "graph/exact_text.hpp"
#include "graph/op.hpp"
#include "passes/list.hpp"

namespace backpass {
namespace {

/// Names shared by equal values: constants by contents, everything else by identity. Of large ones, only those that are
/// never trained (masks, positions): parameters that begin alike need not stay so.
class Identities {
 public:
  std::string of(const Value* v) {
    if (v == nullptr) return "_";
    if (!v->constant || v->constant->dtype() == DType::string) return name_of(v);
    if (v->constant->bytes() <= kSmall) return "c" + exact_text(*v->constant);
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

std::optional<std::string> key_of(const Node& node, Identities& identities) {
  if (node.def == nullptr || node.def->is_random || !node.subgraphs.empty()) return std::nullopt;
  std::string key = concat(node.domain, ".", node.op, "@", node.opset, "/", node.outputs.size());
  for (const Value* v : node.outputs) key += v == nullptr ? "-" : "+";
  for (const Value* v : node.inputs) key += "|" + identities.of(v);
  for (const auto& [name, attribute] : node.attributes) {
    key += "#" + name + "=" + exact_text(attribute);
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
