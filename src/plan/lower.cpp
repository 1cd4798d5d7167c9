#include "plan/lower.hpp"

#include "graph/clone.hpp"

namespace backpass {

std::unique_ptr<Graph> lower(const Graph& graph, PassManager& passes) {
  std::unique_ptr<Graph> lowered = clone(graph).graph;
  passes.lower(*lowered);
  return lowered;
}

}  // namespace backpass
