// The one door out of the engine: nodes that are run by whoever embeds it (PyTorch's functions, for one).
//
// A callback sees a late step's inputs and fills in its outputs. What it throws reaches the caller of the run as it is.
// Code that is not torch's own may keep what it sees in ways that nobody is told of (`ctx.scale = inputs[1]`, a list of
// its own): it is given memory that stays what it is, and what it gives is copied where others may write to it.
//
// State that a forward node keeps for its gradient node travels along the graph as a *context*: a 0-D int64 tensor,
// whose value is a ticket and whose owner keeps the state alive. It is released when the engine lets go of the value.
#pragma once

#include <functional>
#include <memory>

#include "graph/op.hpp"

namespace backpass {

using Callback = std::function<void(ComputeContext&)>;

/// Who runs the nodes that need PyTorch; an empty one takes the present one away. May be called at any time.
void set_torch_callback(Callback callback);

/// Runs the node by what was installed; Unsupported naming the node when there is nothing.
void run_torch_callback(ComputeContext& context);

/// Whether a node runs code that is not torch's own: a function, or an operator outside of aten.
bool runs_foreign_code(const Node& node);

/// A tensor that holds `state` as long as a handle to it lives.
Tensor make_context(std::shared_ptr<void> state);

/// The state behind a context; InvalidInput when the tensor is none, or a copy that outlived the original.
std::shared_ptr<void> state_of(const Tensor& context);

}  // namespace backpass
