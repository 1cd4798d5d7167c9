// Functions of a model that have a gradient of their own: see function_gradient.cpp.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.hpp"

namespace backpass {

struct FunctionName {
  std::string domain;
  std::string name;
};

bool is_function_gradient(const Node& node);

/// How many of the node's inputs are results of the body: nothing flows back to those.
std::size_t results_of(const Node& node);

Node* add_function_gradient(Graph& graph, const std::vector<Value*>& results, const std::vector<Value*>& arguments,
                            const std::vector<Value*>& outputs, const FunctionName& function,
                            std::string_view node_name);

/// Takes the nodes out again, here and in subgraphs: for graphs that will not be differentiated any more.
void remove_function_gradients(Graph& graph);

}  // namespace backpass
