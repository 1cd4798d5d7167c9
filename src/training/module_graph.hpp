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

/// What the second half finds where the first half, and its caller, have it.
struct ReadLater {
  std::vector<std::size_t> inputs;     ///< of the module, whose memory the second half may read
  std::vector<std::size_t> outputs;    ///< the same
  std::vector<std::size_t> kept;       ///< outputs whose memory a function of PyTorch may have kept for its gradient
  std::vector<std::size_t> gradients;  ///< after the module's outputs, whose memory foreign code may have kept
};

/// Of a module's graph, as it runs. Views look at the memory of what they are views of, so these are more than the
/// values that nodes read. Nodes in `repeated` belong to the first half, and may run again in the second.
ReadLater find_read_later(const Graph& graph, std::size_t user_outputs, const NodeSet& repeated = {});

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
