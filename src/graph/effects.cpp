#include "graph/effects.hpp"

#include <algorithm>

#include "graph/op.hpp"

namespace backpass {

bool has_effect(const Node& node) {
  if (node.def != nullptr && node.def->has_effect) return true;
  return std::any_of(node.subgraphs.begin(), node.subgraphs.end(),
                     [](const auto& sub) { return find_effect(*sub.second) != nullptr; });
}

const Node* find_effect(const Graph& graph) {
  const auto found =
      std::find_if(graph.nodes().begin(), graph.nodes().end(), [](const Node* n) { return has_effect(*n); });
  return found == graph.nodes().end() ? nullptr : *found;
}

}  // namespace backpass
