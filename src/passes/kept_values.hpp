// Which values of the first half of a training graph the second half should keep, and which it should compute again.
#pragma once

#include <unordered_set>

#include "graph/halves.hpp"

namespace backpass {

/// Whether a node only moves elements, or works on them one by one or row by row: fit to be repeated.
bool is_cheap(const Node& node);

/// Values, none of them a view, that are to be computed again where the second half, `later`, reads them or something
/// that is computed again from them. What they are computed from is kept, or computed again in turn.
///
/// They are found as a minimum cut between the first half and its readers in the second. To keep a value costs its
/// bytes, unless it is there anyway: parameters, constants, outputs. To repeat a node costs a fraction of the bytes it
/// writes; what is no cheap node cannot be repeated. Symbols count as one common number: they decide what is chosen
/// and not whether it is right.
std::unordered_set<const Value*> values_to_repeat(const Graph& graph, const NodeSet& later);

}  // namespace backpass
