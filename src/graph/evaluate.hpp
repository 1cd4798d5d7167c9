// Running one node by itself: the simplest executor there is. Constant folding, values known at binding time, steps
// whose shapes depend on data, and tests of planned execution all use it.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "backpass/tensor.hpp"
#include "graph/op.hpp"

namespace backpass {

using SubgraphRunner =
    std::function<std::vector<RuntimeValue>(std::string_view attribute, std::vector<RuntimeValue> inputs)>;

/// The node's outputs for these inputs, in freshly allocated memory. `run_subgraph` is needed by control flow only.
std::vector<RuntimeValue> evaluate_node(const Node& node, std::vector<RuntimeValue> inputs,
                                        const SubgraphRunner& run_subgraph = {});

/// Calls the operator's `prepare`, wrapped in conversions where it handles 16-bit floats through float32.
Kernel prepare_kernel(PrepareContext& context);

/// Static type of a run-time value.
Type type_of(const RuntimeValue& value);

}  // namespace backpass
