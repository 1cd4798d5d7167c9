// What passes that recognise operators in what is written out ask of nodes and values.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "graph/graph.hpp"
#include "graph/halves.hpp"

namespace backpass::pattern {

bool is_op(const Node* node, std::string_view op);

/// The one number that a constant holds.
std::optional<double> number_of(const Value* v);

/// Whether the node gives its input as it is: Identity, a Cast to the same type.
bool is_identity(const Node* node);

/// What the value is behind such nodes.
Value* source_of(Value* v);

/// 0 where it is not known.
std::size_t rank_of(const Value* v);

bool has_same_type(const Value* a, const Value* b);

/// Whether all who read the value are among the nodes.
bool is_read_within(const Graph& graph, const Value* v, const NodeSet& nodes);

/// What these nodes give and nobody else reads.
std::vector<Value*> inner_values(const Graph& graph, const NodeSet& nodes);

}  // namespace backpass::pattern
