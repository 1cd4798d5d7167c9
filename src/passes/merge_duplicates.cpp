#include <map>
#include <optional>

#include "graph/exact_text.hpp"
#include "graph/op.hpp"
#include "passes/list.hpp"

namespace backpass {
namespace {

constexpr std::size_t kMaxComparedConstant = 64;

/// A name shared by equal values: small constants by contents, everything else by identity.
std::string identity_of(const Value* v) {
  if (v == nullptr) return "_";
  if (v->constant && v->constant->dtype() != DType::string && v->constant->bytes() <= kMaxComparedConstant) {
    return "c" + exact_text(*v->constant);
  }
  return concat("v", static_cast<const void*>(v));
}

std::optional<std::string> key_of(const Node& node) {
  if (node.def == nullptr || node.def->is_random || !node.subgraphs.empty()) return std::nullopt;
  std::string key = concat(node.domain, ".", node.op, "@", node.opset, "/", node.outputs.size());
  for (const Value* v : node.outputs) key += v == nullptr ? "-" : "+";
  for (const Value* v : node.inputs) key += "|" + identity_of(v);
  for (const auto& [name, attribute] : node.attributes) {
    key += "#" + name + "=" + exact_text(attribute);
  }
  return key;
}

}  // namespace

void merge_duplicates(Graph& graph, Reports& reports) {
  std::map<std::string, Node*> seen;
  bool removed = false;
  for (Node* node : graph.nodes()) {
    std::optional<std::string> key = key_of(*node);
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
