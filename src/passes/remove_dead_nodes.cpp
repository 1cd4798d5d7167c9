#include "passes/list.hpp"

namespace backpass {

void remove_dead_nodes(Graph& graph, Reports& reports) {
  const int removed = graph.remove_dead_nodes();
  if (removed == 0) return;
  reports.push_back({.what = concat("removed ", removed, " nodes"), .why = "no output depends on them"});
}

}  // namespace backpass
