// What passes ask of nodes and values.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "graph/graph.hpp"
#include "graph/halves.hpp"

namespace backpass::pattern {

/// Null is no operator.
bool is_op(const Node* node, std::string_view op, std::string_view domain = "");

/// The axis an attribute or input names, counted from the front.
std::size_t axis_from_front(std::int64_t axis, std::size_t rank);

/// The constant integers of an input, or of an attribute where the node has no such input.
std::optional<std::vector<std::int64_t>> constant_ints(const Node& node, std::size_t input, std::string_view attribute);

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
