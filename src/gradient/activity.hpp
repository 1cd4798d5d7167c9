// Which values of a graph take part in a differentiation.
#pragma once

#include <set>
#include <span>

#include "graph/graph.hpp"

namespace backpass {

using ValueSet = std::set<const Value*>;

/// Whether a value of this type can have a gradient: a tensor of floats, or a sequence or an optional of such.
bool holds_floats(const Type& type);

/// Whether it is a tensor that can have a gradient.
bool carries_gradient(const Value* v);

bool reads_any(const Node& node, const ValueSet& values);
bool writes_any(const Node& node, const ValueSet& values);

/// `from`, and everything that depends on it differentiably.
ValueSet reached_from(const Graph& graph, ValueSet from);

/// `outputs`, and everything they depend on differentiably.
ValueSet needed_for(const Graph& graph, ValueSet outputs);

/// Values on some differentiable path from `wrt` to `outputs`.
ValueSet active_values(const Graph& graph, std::span<Value* const> outputs, std::span<Value* const> wrt);

}  // namespace backpass
