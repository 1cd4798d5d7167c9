// Nodes in a training graph that tell when gradients are complete.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// The gradients among the outputs, by their numbers, in the order in which a run completes them.
std::vector<std::size_t> completion_order(const Graph& graph);

/// Adds a BucketReady behind the last gradient of each bucket. Its result becomes an output, behind the gradients and
/// one of them. A gradient whose memory somebody else reads, or gives out as well, gets memory of its own.
void add_bucket_nodes(Graph& graph, std::span<const std::vector<std::size_t>> buckets);

}  // namespace backpass
