// Nodes that write their results to the memory of what they read: updates of parameters, whose new values take the
// place of the old ones.
#pragma once

#include <unordered_set>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// Output k of the node goes to the memory of its input number `inputs[k]`, an input of the graph; -1: to memory of its
/// own. The node works element by element, and runs when nobody reads the old values any more (plan/schedule.hpp).
void set_overwritten(Node& node, std::vector<std::int64_t> inputs);

/// What the node writes over, per output, null for none; empty for most nodes.
std::vector<const Value*> overwritten_by(const Node& node);

using ValueSet = std::unordered_set<const Value*>;

/// The value and all others that may lie in its memory while the graph runs: views of it, and what operators that run
/// outside of the arena hand on.
ValueSet values_in_memory_of(const Value* value);

}  // namespace backpass
