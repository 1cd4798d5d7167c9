// A module's graph together with its gradients, in two halves. The YieldOp between them hands out what the module
// returns and gives back the gradients of some of it; what comes after turns those into gradients of the inputs.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.hpp"
#include "plan/repeat.hpp"

namespace backpass {

struct ModuleGraph {
  std::unique_ptr<Graph> graph;  ///< outputs: the module's, then the gradients
  std::size_t user_outputs = 0;
  std::vector<std::size_t> seeds;  ///< which of the module's outputs the YieldOp gives gradients of, in order
  /// For each input asked for: index of its gradient after the module's outputs; -1 where nothing flows back to it.
  std::vector<int> gradients;
};

/// The nodes that run before the caller gets a say, the YieldOp included; all where there is none.
NodeSet up_to_yield(const Graph& graph);

/// For each output: whether it depends differentiably on any of the inputs.
std::vector<bool> differentiable_outputs(const Graph& graph, std::span<const std::string> inputs);

/// Those of the inputs that the output depends on differentiably.
std::vector<std::string> differentiable_inputs(const Graph& graph, const Value* output,
                                               std::span<const std::string> inputs);

/// `seeded` says of each output whether a gradient will be given for it; with none, the forward half alone remains.
/// InvalidInput for an unknown input, Unsupported listing every operator without a gradient.
ModuleGraph add_module_gradients(std::unique_ptr<Graph> graph, std::span<const std::string> requires_grad,
                                 const std::vector<bool>& seeded);

}  // namespace backpass
