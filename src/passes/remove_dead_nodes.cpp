#include "passes/list.hpp"

namespace backpass {
namespace {

/// What a body captures for nodes that are gone would be computed for nobody.
bool remove_unread_captures(Graph& graph) {
  const std::size_t before = graph.captures.size();
  graph.remove_captures([&](const Capture& c) { return graph.use_count(c.inner) == 0; });
  return graph.captures.size() < before;
}

}  // namespace

void remove_dead_nodes(Graph& graph, Reports& reports) {
  const int removed = graph.remove_dead_nodes();
  if (remove_unread_captures(graph)) graph.remove_dead_nodes();  // the values they had here
  if (removed == 0) return;
  reports.push_back({.what = concat("removed ", removed, " nodes"), .why = "no output depends on them"});
}

}  // namespace backpass
