#include "passes/pipeline.hpp"

#include "ops/custom/function_gradient.hpp"
#include "passes/block_convolutions.hpp"
#include "passes/constant_reshapes.hpp"
#include "passes/dropout_masks.hpp"
#include "passes/fold_constants.hpp"
#include "passes/fuse_linear.hpp"
#include "passes/fuse_tiles.hpp"
#include "passes/known_ints.hpp"
#include "passes/loss_probabilities.hpp"
#include "passes/merge_duplicates.hpp"
#include "passes/remove_identities.hpp"

namespace backpass {
namespace {

void optimize_into(Graph& graph, std::vector<std::string>& log) {
  for (Node* node : graph.nodes()) {
    for (auto& [key, sub] : node->subgraphs) optimize_into(*sub, log);
  }
  graph.remove_dead_nodes();
  known_ints(graph, log);
  fold_constants(graph, log);
  remove_identities(graph, log);
  constant_reshapes(graph, log);
  merge_duplicates(graph, log);
  drop_dropout_masks(graph, log);
  drop_loss_probabilities(graph, log);
  fuse_linear(graph, log);
  block_convolutions(graph, log);
  fuse_tiles(graph, log);
}

}  // namespace

std::vector<std::string> optimize(Graph& graph) {
  std::vector<std::string> log;
  remove_function_gradients(graph);
  optimize_into(graph, log);
  return log;
}

}  // namespace backpass
