// Values of the forward pass made again in the backward pass, instead of being kept in between.
#pragma once

#include <functional>
#include <memory>

#include "graph/halves.hpp"
#include "plan/fate.hpp"

namespace backpass {

/// Whether a second node like this one gives the same bits: it depends on its inputs alone, and its sizes are known
/// before it runs.
bool is_repeatable(const Node& node);

/// Which input of the node a copy reads as its input i. Running statistics of a batch normalisation may have changed in
/// between, and are of no use to a copy: it reads something else of that type.
std::size_t input_of_copy(const Node& node, std::size_t i);

/// The nodes in `forward` that those outside of it may need again, however little is kept.
NodeSet nodes_to_repeat(const Graph& graph, const NodeSet& forward);

/// What the second half of a graph finds of the first.
struct Repeats {
  std::function<bool(const Value*)> is_kept;
  std::function<Fate(const Node*)> fate = [](const Node*) { return Fate::made_again; };  ///< of a node made again
  std::function<int(const Node*)> epoch = [](const Node*) { return 0; };                 ///< of one that reads it
};

/// A copy of the graph whose nodes outside of `forward` read no results of nodes in `forward` but those that are kept.
/// They read results of copies instead, each of which stands before its first reader. What subgraphs capture and what
/// is_repeatable() does not hold for has to be kept.
std::unique_ptr<Graph> with_repeats(const Graph& graph, const NodeSet& forward, const Repeats& repeats);

}  // namespace backpass
