// A training graph that updates its parameters: each as soon as its gradient is complete and nobody reads its old value
// any more, so that gradients are there one after the other, in memory that serves others before and after.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

/// How an optimizer changes one parameter: an operator of the domain backpass that reads learning rate, number of the
/// step, parameter, gradient and states, and gives the parameter and the states.
struct UpdateRule {
  using Attributes = std::map<std::string, Attribute, std::less<>>;

  std::string op;
  std::vector<Attributes> attributes;  ///< per parameter; one for all, or none at all, where they are alike
  std::vector<std::string> states;     ///< names

  const Attributes& of(std::size_t parameter) const;
};

struct UpdateGraph {
  std::unique_ptr<Graph> graph;  ///< null: it cannot be
  std::string obstacle;          ///< why
};

/// A copy of a graph whose outputs [first_gradient, first_gradient + gradient_count) are gradients of the inputs named
/// `parameters`. Further inputs: learning rate (float64[1]), step (int64[1]), then of each state those of all
/// parameters. Parameters and states that were updated, in the same order, take the place of the gradients; their
/// memory has to be that of the inputs.
UpdateGraph with_updates(const Graph& graph, std::span<const std::string> parameters, const UpdateRule& rule);

}  // namespace backpass
