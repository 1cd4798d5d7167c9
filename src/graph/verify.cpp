#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "graph/graph.hpp"
#include "graph/op.hpp"

namespace backpass {
namespace {

void verify_arity(const Node& node, std::vector<std::string>& problems) {
  if (node.def == nullptr || node.opset != 0) return;
  auto check = [&](const Arity& arity, std::size_t count, const char* what) {
    auto n = static_cast<int>(count);
    if (n >= arity.min && (arity.max < 0 || n <= arity.max)) return;
    std::string expected = std::to_string(arity.min);
    if (arity.max < 0) expected += " or more";
    if (arity.max > arity.min) expected += " to " + std::to_string(arity.max);
    problems.push_back(concat(node.label(), " number of ", what, ": got ", n, ", expected ", expected));
  };
  check(node.def->inputs, node.inputs.size(), "inputs");
  check(node.def->outputs, node.outputs.size(), "outputs");
  // Operators with subgraphs know themselves what may be left out: Loop runs without a count or a condition.
  auto required = std::min(node.inputs.size(), static_cast<std::size_t>(node.def->inputs.min));
  for (std::size_t i = 0; i < required && node.subgraphs.empty(); ++i) {
    if (node.inputs[i] != nullptr) continue;
    problems.push_back(concat(node.label(), " input ", i, ": got none, expected a value; it may not be omitted"));
  }
}

using Readers = std::vector<const Node*>;

Readers sorted(Readers readers) {
  std::sort(readers.begin(), readers.end());
  return readers;
}

void verify_readers(const Graph& graph, std::vector<std::string>& problems) {
  std::unordered_map<const Value*, Readers> found;
  for (const Node* node : graph.nodes()) {
    for_each_read(*node, [&](const Value* v) { found[v].push_back(node); });
  }
  for (const auto& v : graph.values()) {
    const Readers listed(v->readers.begin(), v->readers.end());
    if (sorted(listed) == sorted(found[v.get()])) continue;
    problems.push_back(concat("readers of '", v->name, "': got a list of ", listed.size(), ", expected the ",
                              found[v.get()].size(), " reads by nodes"));
  }
}

}  // namespace

std::vector<std::string> verify_arity(const Node& node) {
  std::vector<std::string> problems;
  verify_arity(node, problems);
  return problems;
}

std::vector<std::string> verify(const Graph& graph) {
  std::vector<std::string> problems;
  std::unordered_set<const Value*> defined(graph.inputs.begin(), graph.inputs.end());
  for (const Capture& c : graph.captures) defined.insert(c.inner);
  for (const auto& v : graph.values()) {
    if (v->constant) defined.insert(v.get());
  }
  for (const Node* node : graph.nodes()) {
    for_each_read(*node, [&](const Value* v) {
      if (defined.count(v) == 0) problems.push_back(node->label() + " reads '" + v->name + "' before it is defined");
    });
    for (const Value* v : node->outputs) {
      if (v == nullptr) continue;
      if (!defined.insert(v).second) problems.push_back(node->label() + " defines '" + v->name + "' a second time");
      if (v->producer != node) problems.push_back(node->label() + " is not the recorded producer of '" + v->name + "'");
    }
    verify_arity(*node, problems);
    for (const auto& [key, sub] : node->subgraphs) {
      if (sub->parent != &graph) problems.push_back(node->label() + " subgraph '" + key + "' has another parent");
      for (auto& p : verify(*sub)) problems.push_back(concat(node->label(), " ", key, ": ", p));
    }
  }
  for (const Value* v : graph.outputs) {
    if (defined.count(v) == 0) problems.push_back("graph output '" + v->name + "' is never defined");
  }
  verify_readers(graph, problems);
  return problems;
}

}  // namespace backpass
