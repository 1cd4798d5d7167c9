#include "ops/custom/function_gradient.hpp"
#include "passes/list.hpp"

namespace backpass {

void function_gradients(Graph& graph, Reports& reports) {
  for (const Node* node : graph.nodes()) {
    if (!is_function_gradient(*node)) continue;
    reports.push_back({.node = node->label(),
                       .what = "bypassed " + node->label(),
                       .why = "its rule has no further meaning once gradients are there"});
  }
  remove_function_gradients(graph);
}

}  // namespace backpass
