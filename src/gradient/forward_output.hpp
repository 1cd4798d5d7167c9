// Gradients that read an output of the forward node which the model did not ask for.
#pragma once

#include <algorithm>
#include <utility>

#include "gradient/rule.hpp"

namespace backpass {

/// The node being differentiated, to be altered: its outputs must go on meaning what they meant.
inline Node& forward_node(GradientContext& g) {
  auto some = std::find_if(g.node.outputs.begin(), g.node.outputs.end(), [](const Value* v) { return v != nullptr; });
  return *(*some)->producer;
}

/// Output k of the forward node; made, with this type, when it was omitted so far.
inline Value* forward_output(GradientContext& g, std::size_t k, Type type) {
  Node& node = forward_node(g);
  if (node.outputs.size() <= k) node.outputs.resize(k + 1, nullptr);
  if (node.outputs[k] == nullptr) {
    Value* added = g.b.graph.add_value(concat(node.name, "_output_", k), std::move(type));
    added->producer = &node;
    node.outputs[k] = added;
  }
  return node.outputs[k];
}

}  // namespace backpass
